"""A list of the files of a folder with their checksums, by which a reader knows that they are what was written."""

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from .files import sha256_of

MANIFEST = "manifest.json"


class ManifestError(ValueError):
    """A folder is not what its manifest says. The message names the file."""


def manifest_of(folder: Path, facts: dict[str, Any]) -> str:
    """Facts, and the size and checksum of every file of a folder, as JSON with a checksum of its own."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": sha256_of(path)} for path in files
    }
    return _with_checksum(facts | {"files": entries})


def verify(folder: Path) -> dict[str, Any]:
    """What the manifest of a folder says, or a ManifestError unless all files that it names are as they were."""
    facts = read_manifest(folder)
    for name, entry in facts["files"].items():
        file = folder / name
        if not file.is_file():
            raise ManifestError(f"{file} is missing")
        if file.stat().st_size != entry["size"]:
            raise ManifestError(f"{file} has {file.stat().st_size} bytes instead of {entry['size']}")
        if sha256_of(file) != entry["sha256"]:
            raise ManifestError(f"{file} has another checksum than when it was saved")
    return facts


def verify_foreign(folder: Path, besides: Collection[str] = ()) -> dict[str, Any]:
    """
    As `verify`, for a folder that somebody else may have made: every file of it must be named in its manifest (but for
    those `besides` and hidden ones), and be a file of the folder itself.
    """
    names = read_manifest(folder)["files"]
    for name in names:
        if "/" in name or "\\" in name:
            raise ManifestError(f"{folder / MANIFEST} names {name!r}, which is not a file of the folder itself")
    for path in (folder / MANIFEST, *(folder / name for name in names)):
        if path.is_symlink():
            raise ManifestError(f"{path} is a symbolic link: copy the folder with the files that its links lead to")
    for path in folder.iterdir():
        if path.name not in {*names, MANIFEST, *besides} and not path.name.startswith("."):
            raise ManifestError(f"{path} is not named in {folder / MANIFEST}: remove one of them")
    return verify(folder)


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a manifest says, if it is as it was written and has an entry with size and checksum for each file."""
    file = folder / MANIFEST
    try:
        text = file.read_bytes().decode()
        facts: dict[str, Any] = json.loads(text)
        facts.pop("sha256")
        _check_entries(facts["files"])
    except FileNotFoundError:
        raise ManifestError(f"{file} is missing") from None
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ManifestError(f"{file} is not what was saved: {error}") from None
    if _with_checksum(facts) != text:
        raise ManifestError(f"{file} has another checksum than when it was saved")
    return facts


def _check_entries(files: dict[str, Any]) -> None:
    for name, entry in files.items():
        if not (isinstance(entry["size"], int) and isinstance(entry["sha256"], str)):
            raise ValueError(f"the entry of {name!r} has no size and checksum")


def _with_checksum(facts: dict[str, Any]) -> str:
    text = json.dumps(facts, sort_keys=True)
    return json.dumps(facts | {"sha256": hashlib.sha256(text.encode()).hexdigest()}, sort_keys=True, indent=1)
