"""
Checkpoints that are either complete or not there.

A checkpoint is written into the folder `unfinished` of its run, sealed with a manifest of checksums, and only then
renamed to `checkpoint-STEP`. So every checkpoint was complete when it got its name, at whatever moment a training is
killed; and what is damaged later is found by the checksums.
"""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EAGAIN, ENOLCK, ENOSYS, ENOTSUP, EOPNOTSUPP
from pathlib import Path
from typing import IO

from ..files import free_space, settle, sync, write_whole
from ..manifest import MANIFEST
from ..messages import say
from ..run_directory import LOCK, UNFINISHED, checkpoints_of
from .checkpoints import DamagedCheckpointError, manifest_of, verify
from .machine import refuse_unsupported_systems

WITHOUT_LOCKS = (ENOLCK, ENOSYS, ENOTSUP, EOPNOTSUPP)
"""Errors of file systems that have no locks."""

_written_here: set[Path] = set()
"""The runs that this process writes: the locks of files do not keep its own threads apart."""


class SavingError(OSError):
    """A checkpoint or a model could not be written."""


class RunInUseError(RuntimeError):
    """Another process or thread writes this run."""


def unfinished(run: Path) -> Path:
    """The folder for what is still being written."""
    return run / UNFINISHED


def seal(folder: Path, step: int) -> None:
    """Have all files of a checkpoint reach the disk, and then its manifest."""
    settle(folder, folder.rglob("*"))
    write_whole(folder / MANIFEST, manifest_of(folder, step))


def publish(folder: Path, destination: Path) -> None:
    """Give a sealed checkpoint its name. A checkpoint that has the name already, a damaged one, is discarded."""
    if destination.exists():
        discard(destination)
    folder.rename(destination)
    sync(destination.parent)


def discard(checkpoint: Path) -> None:
    """Rename a checkpoint and then delete it, so that no half of it ever has the name of a checkpoint."""
    aside = unfinished(checkpoint.parent) / f"discarded-{checkpoint.name}"
    aside.parent.mkdir(exist_ok=True)
    shutil.rmtree(aside, ignore_errors=True)
    checkpoint.rename(aside)
    shutil.rmtree(aside)


def newest_whole_checkpoint(run: Path) -> Path | None:
    """The checkpoint to go on from. Damaged ones are reported and renamed."""
    for checkpoint in reversed(checkpoints_of(run)):
        try:
            verify(checkpoint)
        except (DamagedCheckpointError, OSError) as error:
            aside = run / f"damaged-{checkpoint.name}"
            say(f"{error}; {checkpoint.name} is passed over and now called {aside.name}")
            shutil.rmtree(aside, ignore_errors=True)
            checkpoint.rename(aside)
        else:
            return checkpoint
    return None


def keep_newest(run: Path, limit: int | None, protected: set[Path]) -> None:
    """Discard all checkpoints but the newest ones, `limit` of them, and those that are `protected`."""
    for checkpoint in checkpoints_of(run)[:-limit] if limit else []:
        if checkpoint not in protected:
            discard(checkpoint)


def move_files(folder: Path, destination: Path) -> None:
    """Replace files of `destination` by the complete ones in `folder`, one by one."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    settle(folder, files)
    for file in files:
        target = destination / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)
    shutil.rmtree(folder)
    sync(destination)


@contextmanager
def explained(what: str, folder: Path, run: Path) -> Iterator[None]:
    """If writing something into `folder` fails, say where and after how many bytes, and delete the folder."""
    try:
        yield
    except Exception as error:  # the tokenizer raises nothing more precise
        written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        shutil.rmtree(folder, ignore_errors=True)
        kept = [checkpoint.name for checkpoint in checkpoints_of(run)]
        raise SavingError(
            f"{what} could not be written to {folder}, after {written / 2**20:.1f} MiB, "
            f"{free_space(run) / 2**20:.1f} MiB free: {error}; "
            f"{f'{kept[-1]} is still good' if kept else 'there is no earlier checkpoint'}: "
            "make room, then the same command goes on from there"
        ) from error


@contextmanager
def only_writer(run: Path) -> Iterator[None]:
    """Refuse to write a run that is being written; delete what a process that was killed left unfinished."""
    place = run.resolve()
    if place in _written_here:
        raise RunInUseError(f"{run} is being written by another thread of this process; choose another --output")
    _written_here.add(place)
    try:
        with (run / LOCK).open("a+", encoding="utf-8") as lock:
            _lock(lock, run)
            lock.truncate(0)
            lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            lock.flush()
            shutil.rmtree(unfinished(run), ignore_errors=True)
            yield
            shutil.rmtree(unfinished(run), ignore_errors=True)
    finally:
        _written_here.discard(place)


def _lock(file: IO[str], run: Path) -> None:
    refuse_unsupported_systems()
    import fcntl

    try:
        # Unlike those of flock, these locks die with the process even if its workers live on for a moment.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (EACCES, EAGAIN):
            file.seek(0)
            raise RunInUseError(f"{run} is being written by {file.read().strip()}; choose another --output") from None
        if error.errno not in WITHOUT_LOCKS:
            raise
        say(f"{run} is on a file system without locks ({error.strerror}): let nothing else write this run")
