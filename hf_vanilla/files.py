"""How files are written."""

import os
import shutil
from pathlib import Path


def write_whole(file: Path, text: str) -> None:
    """Under another name first: whoever reads `file` finds all of it, or what was there before."""
    partial = file.with_name(f"{file.name}.partial")
    partial.write_text(text, encoding="utf-8")
    sync(partial)
    partial.replace(file)
    sync(file.parent)


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, reach the disk."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows can neither open folders nor flush what is open for reading
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def free_space(path: Path) -> int:
    """Bytes that are free where something is, or would be."""
    absolute = path.absolute()
    return shutil.disk_usage(next(place for place in (absolute, *absolute.parents) if place.exists())).free
