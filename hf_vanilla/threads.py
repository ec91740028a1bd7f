"""
Threads: no more than this process may use, and none that keeps a core busy which another process needs.

PyTorch shares its work out among threads of OpenMP, which wait for each other thousands of times a second. A waiting
thread keeps looking whether it may go on ("spins"), for up to 10 ms, before it sleeps. That is fastest while each
thread has a core of its own. Where another process takes cores, threads spin on one core while those they wait for
have none: two trainings on two cores then get a tenth each of what one gets alone.

libgomp, the OpenMP of PyTorch on Linux, spins 3,000 times shorter while there are more OpenMP threads than cores. So
idle threads are added for as long as other processes take cores. PyTorch goes on to share its work out among as many
threads as before: with another number, sums would be rounded in other ways, and no run could be repeated exactly.
"""

import ctypes
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath
from threading import Event, Thread

import torch

SECONDS_TO_LOOK = 1.0  # for how long to measure what other processes take
SECONDS_TO_GIVE_WAY = 10.0  # before threads spin again for a look, in case the other processes are gone
SHARE_TO_NOTICE = 0.1  # of the processor time that the threads ask for
LOOKS_TO_REPORT = 2  # in a row that notice something: what is short needs no message

NUMBER_OF_THREADS = "OMP_NUM_THREADS"
WAYS_TO_WAIT = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # who sets one of these has decided how threads wait

Times = dict[str, tuple[int, int]]  # of each thread, nanoseconds on a core and nanoseconds of waiting for one


def usable_cores(root: Path = Path("/")) -> int:
    """For how many threads there are cores."""
    return max(1, math.floor(allowed_cores(root) + 0.5))


def allowed_cores(root: Path = Path("/")) -> float:
    """How many cores the process may keep busy: by its CPU affinity, and by the CPU quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([cores, *cpu_quotas(root)])


def cpu_quotas(root: Path = Path("/")) -> Iterator[float]:
    """The cores that cgroups (version 1 or 2) allow to the process, in its own group and in all groups around it."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        inside = PurePosixPath(group).relative_to("/")
        for folder in (inside, *inside.parents):
            quota = _quota_of_version_1(mount / folder) if controllers else _quota_of_version_2(mount / folder)
            if quota is not None:
                yield quota


def _quota_of_version_2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _quota_of_version_1(folder: Path) -> float | None:
    try:
        files = (folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
        quota, period = (int(file.read_text(encoding="utf-8")) for file in files)
    except (OSError, ValueError):
        return None
    return None if quota < 0 else quota / period


def limit_threads() -> None:
    """Have PyTorch use no more threads than there are cores to use, unless OMP_NUM_THREADS says how many."""
    if NUMBER_OF_THREADS not in os.environ:
        torch.set_num_threads(min(torch.get_num_threads(), usable_cores()))


@contextmanager
def giving_way(report: Callable[[str], None]) -> Iterator[None]:
    """
    A block in which threads do not spin while other processes take the cores.

    Args:
        report: Is told once if other processes take the cores for long.
    """
    over = Event()
    watch = Thread(target=_watch, args=(over, report), daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()


def _watch(over: Event, report: Callable[[str], None]) -> None:
    """Measure, and give way if need be. Whether the others are gone shows only while threads spin: so measure again."""
    libgomp = None if any(name in os.environ for name in WAYS_TO_WAIT) else _libgomp()
    looks, is_reported = 0, False
    before, began = times_of_threads(), time.perf_counter()
    while before and not over.wait(SECONDS_TO_LOOK):
        taken = share_taken(before, times_of_threads(), time.perf_counter() - began, allowed_cores())
        is_noticed = taken > SHARE_TO_NOTICE and torch.get_num_threads() > 1
        looks = looks + 1 if is_noticed else 0
        if looks == LOOKS_TO_REPORT and not is_reported:
            report(advice(taken))
            is_reported = True
        if is_noticed and libgomp is not None:
            with short_spins(libgomp):
                over.wait(SECONDS_TO_GIVE_WAY)
        before, began = times_of_threads(), time.perf_counter()


def times_of_threads() -> Times:
    """What Linux counts for each thread of this process. Empty on other systems."""
    times = {}
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        try:
            used, waited, _ = thread.read_text(encoding="utf-8").split()
        except (OSError, ValueError):  # the thread has just ended
            continue
        times[thread.parent.name] = (int(used), int(waited))
    return times


def share_taken(before: Times, after: Times, seconds: float, cores: float) -> float:
    """
    The share of the processor time that the threads asked for, and that other processes got.

    0 if the threads used all that the process may have: then they waited for each other, or for the quota's next time.
    """
    used, waited = (
        sum(times[kind] - before.get(thread, (0, 0))[kind] for thread, times in after.items()) / 1e9 for kind in (0, 1)
    )
    if used > 0.9 * cores * seconds or used + waited < 0.1 * seconds:
        return 0.0
    return waited / (used + waited)


@contextmanager
def short_spins(libgomp: ctypes.CDLL) -> Iterator[None]:
    """A block with more OpenMP threads than cores, in which libgomp lets waiting threads sleep almost at once."""
    begun, over = Event(), Event()

    def hold_idle_threads() -> None:
        nothing = ctypes.cast(libgomp.free, ctypes.c_void_p)  # free(NULL) is what each of the threads does
        libgomp.GOMP_parallel(nothing, None, libgomp.omp_get_num_procs() + 1, 0)
        begun.set()
        over.wait()  # libgomp keeps the threads for as long as the thread lives that asked for them

    holder = Thread(target=hold_idle_threads, daemon=True)
    holder.start()
    begun.wait()
    try:
        yield
    finally:
        over.set()
        holder.join()


@cache
def _libgomp() -> ctypes.CDLL | None:
    process = ctypes.CDLL(None) if sys.platform == "linux" else None
    is_llvm = hasattr(process, "kmp_get_blocktime")  # LLVM's OpenMP has GOMP_parallel, too, but not libgomp's rule
    return process if hasattr(process, "GOMP_parallel") and not is_llvm else None


def advice(taken: float) -> str:
    threads = torch.get_num_threads()
    lines = [f"other processes take {taken:.0%} of the processor time that the {threads} threads of this one ask for"]
    chosen = [name for name in WAYS_TO_WAIT if name in os.environ]
    if chosen:
        lines.append(f"{' and '.join(chosen)} decided how threads wait for each other; unset, they would give way")
    share = max(1, threads // 2)
    lines.append(f"if the other is a training, too, start each with {NUMBER_OF_THREADS}={share}: both will be faster")
    return "; ".join(lines)
