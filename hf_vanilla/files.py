"""Writing files: whole or not at all, onto the disk, and with the modes that the user's umask gives."""

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EINVAL, ENOTSUP
from pathlib import Path
from typing import IO


def write_whole(file: Path, text: str) -> None:
    """Write under another name and rename: whoever reads `file` finds all of the new text, or all of the old one."""
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(text, encoding="utf-8")
    sync(partial)
    partial.replace(file)
    sync(file.parent)


@contextmanager
def opened_whole(output: Path) -> Iterator[IO[bytes]]:
    """
    A file that a user has named, which has its name when the block has ended without an error. A link stays one, and
    what is no regular file (a pipe with a name, /dev/null) is written to as it is.
    """
    if output.exists() and not output.is_file():
        with output.open("wb") as stream:
            yield stream
        return
    file = output.resolve()
    partial = file.with_name(f"{file.name}.partial")
    with partial.open("wb") as stream:
        yield stream
    sync(partial)
    partial.replace(file)


@contextmanager
def new_folder(destination: Path) -> Iterator[Path]:
    """
    A folder to write into, which gets the name `destination` when the block has ended without an error: there is all of
    it or nothing. A destination that exists must be an empty folder.
    """
    if destination.resolve() == Path.cwd():  # a shell would be left in a folder that is gone
        raise FileExistsError(f"{destination} is the current directory: choose a new --output; nothing was changed")
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise FileExistsError(f"{destination} exists and is not empty: choose another --output; nothing was changed")
    destination.absolute().parent.mkdir(parents=True, exist_ok=True)
    partial = destination.with_name(f".{destination.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        settle(partial, partial.rglob("*"))
        partial.replace(destination)
        sync(destination.absolute().parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def settle(folder: Path, paths: Iterable[Path]) -> None:
    """
    Finish files of `folder` that a library wrote: they get the mode of any new file there, and reach the disk.

    Without this, the weights that safetensors writes could be read by their owner only.
    """
    mode = usual_mode(folder)
    for path in paths:
        if path.is_file() and stat.S_IMODE(path.stat().st_mode) != mode:
            with suppress(OSError):  # the file belongs to another user, or its file system has no modes
                path.chmod(mode)
        sync(path)


def usual_mode(folder: Path) -> int:
    """The mode of new files in a folder. Tried out, as asking for the umask would change it for other threads."""
    probe = folder / ".mode"
    probe.touch()
    try:
        return stat.S_IMODE(probe.stat().st_mode)
    finally:
        probe.unlink()


def sync(path: Path) -> None:
    """Have a file, or the list of names in a folder, reach the disk."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows can neither open folders nor flush what is open for reading
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (EINVAL, ENOTSUP):  # some network file systems cannot do it for folders
            raise
    finally:
        os.close(descriptor)


def sha256_of(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def free_space(path: Path) -> int:
    """Free bytes on the disk of a path that need not exist yet."""
    absolute = path.absolute()
    return shutil.disk_usage(next(place for place in (absolute, *absolute.parents) if place.exists())).free
