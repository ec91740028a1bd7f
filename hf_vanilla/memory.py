"""The memory of the process."""

import ctypes
import gc
import os
import platform
import sys

KEPT_KERNELS = 128  # a training step needs some 30 for each of its numbers of rows

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """
    Have the process keep the memory that tensors free, for the next tensors.

    By default glibc returns every large block to the system, and for the next operation gets it back, zeroed page by
    page: on CPUs this takes over a third of the time of a training step, and a quarter of that of a beam search. Does
    nothing with another C library (macOS, Windows, musl).
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    libc.mallopt(M_TOP_PAD, 2**28)


def share_one_arena() -> None:
    """
    Have all threads take memory from the same place. To be called before they are started.

    By default glibc gives each new thread an arena of its own, in which freed tensors leave gaps that nobody else can
    use: a server computes in another thread than it loads its model and reads requests in.
    """
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def keep_few_kernels() -> None:
    """
    Have oneDNN, and PyTorch's own list beside it, keep their last kernels only. To be called before the first product
    of matrices.

    It makes one for each number of rows, and keeps 1,024. Batches of a training hardly ever have the same number of
    rows again, and old kernels are scattered over the memory, whose gaps then fit nothing: after 225 steps of the small
    Multi30k recipe the process has 3.7 GiB with 1,024 kernels, 2.8 GiB with 128, and has taken the same time.

    PyTorch's list has 1,024 for each thread, too. Without this limit, the quick start's model served in batches of all
    sizes takes 140 MB more after 80 batches and goes on; with it, 65 MB after 20 and no more.
    """
    os.environ.setdefault("LRU_CACHE_CAPACITY", str(KEPT_KERNELS))
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KEPT_KERNELS))


def leave_out_of_collections() -> None:
    """
    Have Python's garbage collector no longer look at what is loaded by now.

    Libraries and model are 400,000 objects that stay. While lines are translated by a small model, looking at all of
    them again and again takes 3 % of the time.
    """
    gc.freeze()


def peak_memory() -> int:
    """The most bytes of memory that this process has had. Linux and macOS only."""
    import resource  # not at the top: Windows has none, and most users of this module do not need it

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
