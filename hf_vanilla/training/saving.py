"""
Checkpoints that are whole or are not there.

A checkpoint is written into the folder `unfinished` of its run, sealed with a manifest of checksums, and only then
moved to its name. So what has the name of a checkpoint was complete, at whatever moment a training is killed; and
what becomes damaged afterwards is found by its checksums.
"""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..files import free_space, sync, write_whole
from ..messages import say
from ..run_directory import LOCK, MANIFEST, UNFINISHED, checkpoints_of
from .checkpoints import DamagedCheckpointError, manifest_of, verify


class SavingError(OSError):
    """A checkpoint or a model could not be written."""


class RunInUseError(RuntimeError):
    """Another training writes this run."""


def unfinished(run: Path) -> Path:
    """Where what is not complete yet is written."""
    return run / UNFINISHED


def seal(folder: Path, step: int) -> None:
    """Have all files of a checkpoint reach the disk, then its manifest."""
    for path in folder.rglob("*"):
        sync(path)
    write_whole(folder / MANIFEST, manifest_of(folder, step))


def publish(folder: Path, destination: Path) -> None:
    """Give a sealed checkpoint its name, in place of a damaged one if need be."""
    if destination.exists():
        discard(destination)
    folder.rename(destination)
    sync(destination.parent)


def discard(checkpoint: Path) -> None:
    """Delete a checkpoint, which first loses its name: half of one is never seen."""
    aside = unfinished(checkpoint.parent) / f"discarded-{checkpoint.name}"
    aside.parent.mkdir(exist_ok=True)
    shutil.rmtree(aside, ignore_errors=True)
    checkpoint.rename(aside)
    shutil.rmtree(aside)


def newest_whole_checkpoint(run: Path) -> Path | None:
    """The checkpoint to go on from. Damaged ones are reported and lose their name."""
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
    """Discard the oldest checkpoints that are more than `limit`, but for the protected ones."""
    checkpoints = checkpoints_of(run)
    surplus = len(checkpoints) - limit if limit else 0
    for checkpoint in [path for path in checkpoints if path not in protected][: max(0, surplus)]:
        discard(checkpoint)


def move_files(folder: Path, destination: Path) -> None:
    """Put complete files in the place of older ones, one by one."""
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        sync(file)
        target = destination / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        file.replace(target)
    shutil.rmtree(folder)
    sync(destination)


@contextmanager
def explained(what: str, folder: Path, run: Path) -> Iterator[None]:
    """Say where and after how much the writing of something failed, and remove what there is of it."""
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
    """Keep other trainings from writing the same run; what an earlier one left unfinished is removed."""
    import fcntl

    with (run / LOCK).open("a+", encoding="utf-8") as lock:
        try:
            # Unlike those of flock, these locks die with the process even if its workers live on for a moment.
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise RunInUseError(f"{run} is being written by {lock.read().strip()}; choose another --output") from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        lock.flush()
        shutil.rmtree(unfinished(run), ignore_errors=True)
        yield
        shutil.rmtree(unfinished(run), ignore_errors=True)
