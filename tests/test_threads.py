"""Threads: as many as the process may use, and short waits where other processes take the cores."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
import torch

from hf_vanilla import threads
from hf_vanilla.threads import limit_threads, share_taken, short_spins, times_of_threads, usable_cores

UNLIMITED = {"cpu.max": "max 100000\n"}
HALF = {"cpu.max": "50000 100000\n"}
THREE = {"cpu.max": "300000 100000\n"}


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("group", "files", "cores"),
    [
        ("0::/\n", {}, 8),
        ("0::/\n", {"": THREE}, 3),
        ("0::/\n", {"": UNLIMITED}, 8),
        ("0::/pod/one\n", {"pod/one": THREE}, 3),
        ("0::/pod/one\n", {"pod": THREE, "pod/one": UNLIMITED}, 3),
        ("0::/pod/one\n", {"pod": HALF, "pod/one": THREE}, 1),
        ("0::/\n", {"": {"cpu.max": "1000000 100000\n"}}, 8),
        ("0::/\n", {"": {"cpu.max": "260000 100000\n"}}, 3),
        ("3:cpuset:/\n1:cpu:/box\n", {"cpu/box": {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "50000"}}, 4),
        ("1:cpu,cpuacct:/gone\n", {"cpu,cpuacct": {"cpu.cfs_quota_us": "4000", "cpu.cfs_period_us": "2000"}}, 2),
        ("1:cpu:/\n0::/\n", {"cpu": {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}}, 8),
        (None, {}, 8),
    ],
    ids=lambda value: repr(value) if isinstance(value, str) else "",
)
def test_usable_cores_are_those_of_the_quota_of_any_group_around_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str | None, files: dict[str, dict[str, str]], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    if group is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(group)
    for folder, contents in files.items():
        (tmp_path / "sys/fs/cgroup" / folder).mkdir(parents=True, exist_ok=True)
        for name, text in contents.items():
            (tmp_path / "sys/fs/cgroup" / folder / name).write_text(text)
    assert usable_cores(tmp_path) == cores


def test_a_quota_that_is_used_up_is_no_other_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(threads, "cpu_quotas", lambda _: [1.5])
    used_up = {"main": (3 * SECOND // 4, SECOND // 4), "worker": (3 * SECOND // 4, SECOND // 4)}
    assert usable_cores() == 2
    assert share_taken({}, used_up, seconds=1, cores=threads.allowed_cores()) == 0
    assert share_taken({}, used_up, seconds=1, cores=2) == 0.25


def test_usable_cores_are_no_more_than_the_affinity_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5}, raising=False)
    assert usable_cores(tmp_path) == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores(tmp_path) == os.cpu_count()


@pytest.mark.parametrize(("cores", "chosen", "expected"), [(1, None, 1), (1, "2", 2), (5, None, 2)])
def test_there_are_no_more_threads_than_cores_unless_the_user_says_so(
    two_threads: None, monkeypatch: pytest.MonkeyPatch, cores: int, chosen: str | None, expected: int
) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if chosen:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    limit_threads()
    assert torch.get_num_threads() == expected


SECOND = 10**9


@pytest.mark.parametrize(
    ("times", "taken"),
    [
        ({"main": (SECOND, 0), "worker": (SECOND, 0)}, 0),  # alone
        ({"main": (SECOND // 50, 0), "worker": (0, 0)}, 0),  # waiting for data
        ({"main": (SECOND // 50, SECOND // 50), "worker": (0, 0)}, 0),  # nearly idle: not worth a look
        ({"main": (SECOND, SECOND), "worker": (SECOND, SECOND)}, 0),  # only for each other
        ({"main": (SECOND // 2, SECOND // 2), "worker": (SECOND // 2, SECOND // 2)}, 0.5),
        ({"main": (SECOND, 0), "new": (SECOND // 2, SECOND // 2)}, 0.25),
    ],
)
def test_the_share_of_others_is_what_threads_waited_for_unless_for_each_other(
    times: threads.Times, taken: float
) -> None:
    before = {"main": (3 * SECOND, 5 * SECOND), "worker": (7 * SECOND, 11 * SECOND), "ended": (SECOND, SECOND)}
    after = {
        name: (used + before.get(name, (0, 0))[0], waited + before.get(name, (0, 0))[1])
        for name, (used, waited) in times.items()
    }
    assert share_taken(before, after, seconds=1, cores=2) == pytest.approx(taken)


@pytest.mark.skipif(not times_of_threads(), reason="needs Linux's /proc/self/task/*/schedstat")
def test_a_process_on_the_same_core_is_noticed() -> None:
    allowed = os.sched_getaffinity(0)
    core = {min(allowed)}
    other = subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {core})\nwhile True: pass"])
    try:
        os.sched_setaffinity(0, core)  # of this thread
        time.sleep(0.2)
        before, began = times_of_threads(), time.perf_counter()
        while time.perf_counter() < began + 0.5:
            pass
        assert share_taken(before, times_of_threads(), time.perf_counter() - began, cores=1) > 0.2
    finally:
        os.sched_setaffinity(0, allowed)
        other.kill()
        other.wait()


@pytest.mark.skipif(threads._libgomp() is None or (os.cpu_count() or 1) < 2, reason="needs libgomp and two cores")
def test_with_short_spins_waiting_takes_no_time_and_sums_have_the_same_bits(two_threads: None) -> None:
    libgomp = threads._libgomp()
    assert libgomp is not None
    numbers = torch.randn(1_000_003)

    def milliseconds_of_waiting() -> float:
        before = time.process_time()
        for _ in range(10):
            numbers.neg()  # on two threads, of which one then waits for the next operation
            time.sleep(0.03)
        return 100 * (time.process_time() - before)

    expected = numbers.sum()
    usual = milliseconds_of_waiting()
    with short_spins(libgomp):
        short = milliseconds_of_waiting()
        assert numbers.sum() == expected
        assert torch.get_num_threads() == 2
    assert usual > 2
    assert short < usual / 3
    assert milliseconds_of_waiting() > usual / 2
    torch.set_num_threads(1)
    assert numbers.sum() != expected  # so the number of threads does decide bits


@pytest.mark.parametrize("chosen", [None, "GOMP_SPINCOUNT"])
def test_threads_give_way_while_others_take_cores_which_is_said_once(
    two_threads: None, monkeypatch: pytest.MonkeyPatch, chosen: str | None
) -> None:
    shares = iter([0.0, 0.5, 0.0, 0.5, 0.4, 0.3, 0.0, 0.5, 0.5, 0.0])
    gave_way, is_over = [], Event()

    def next_share(*_: object) -> float:
        share = next(shares, None)
        if share is None:
            is_over.set()
        return share or 0.0

    @contextmanager
    def recorded(libgomp: object) -> Iterator[None]:
        gave_way.append(libgomp)
        yield

    monkeypatch.setattr(threads, "share_taken", next_share)
    monkeypatch.setattr(threads, "short_spins", recorded)
    monkeypatch.setattr(threads, "_libgomp", lambda: "libgomp")
    monkeypatch.setattr(threads, "times_of_threads", lambda: {"main": (0, 0)})
    monkeypatch.setattr(threads, "SECONDS_TO_LOOK", 0.001)
    monkeypatch.setattr(threads, "SECONDS_TO_GIVE_WAY", 0.001)
    for name in threads.WAYS_TO_WAIT:
        monkeypatch.delenv(name, raising=False)
    if chosen:
        monkeypatch.setenv(chosen, "1000")
    said: list[str] = []
    with threads.giving_way(said.append):
        assert is_over.wait(30)
    assert len(gave_way) == (0 if chosen else 6)
    (line,) = said
    assert line.startswith("other processes take 40% of the processor time")
    assert line.endswith("start each with OMP_NUM_THREADS=1: both will be faster")
    assert ("GOMP_SPINCOUNT decided" in line) == bool(chosen)


def test_one_thread_has_nobody_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, is_over = [], Event()

    def look(*_: object) -> float:
        looks.append(1)
        if len(looks) == 5:
            is_over.set()
        return 0.5

    monkeypatch.setattr(threads, "share_taken", look)
    monkeypatch.setattr(threads, "times_of_threads", lambda: {"main": (0, 0)})
    monkeypatch.setattr(threads, "SECONDS_TO_LOOK", 0.001)
    assert torch.get_num_threads() == 1
    said: list[str] = []
    with threads.giving_way(said.append):
        assert is_over.wait(30)
    assert said == []
