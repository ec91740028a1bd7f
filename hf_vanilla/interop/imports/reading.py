"""
Reads the files of a checkpoint. None of them can run code: pickles are read with `weights_only=True`, and what a tensor
claims to be is compared with what its file holds before memory is taken.
"""

import json
import pickle
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import InteropError

MAX_TEXT = 2**28  # bytes of a configuration or a vocabulary
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
UNREADABLE = (
    *(pickle.UnpicklingError, RuntimeError, ValueError, LookupError, EOFError, AttributeError, TypeError),
    *(OSError, OverflowError, MemoryError, NotImplementedError, zipfile.BadZipFile),
)


def one_of(folder: Path, names: Iterable[str]) -> Path:
    """The first of these files that the folder has."""
    names = list(names)
    found = [folder / name for name in names if (folder / name).is_file()]
    if not found:
        raise InteropError(f"{folder} has no {' and no '.join(names)}: name the folder of the whole checkpoint")
    return found[0]


def text_of(file: Path) -> str:
    try:
        if file.stat().st_size > MAX_TEXT:
            raise InteropError(f"{file}: has {file.stat().st_size:,} bytes, too many for a file of text")
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InteropError(f"{file.parent} has no {file.name}, which belongs to the checkpoint") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InteropError(f"{file}: cannot be read: {error}") from None


def json_of(file: Path) -> dict[str, Any]:
    text = text_of(file)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InteropError(f"{file}: is no JSON: {error}") from None
    return _mapping(found, file)


def yaml_of(file: Path) -> dict[str, Any]:
    text = text_of(file)
    try:
        has_aliases = any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader))
        found = None if has_aliases else yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InteropError(f"{file}: is no YAML: {str(error).splitlines()[0]}") from None
    if has_aliases:
        raise InteropError(f"{file}: has aliases (*name), with which a short file can be endless: write them out")
    return _mapping(found, file)


def _mapping(found: Any, file: Path) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise InteropError(f"{file}: must have names and values, not {type(found).__name__}")
    return found


def safetensors_of(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt") as stored:
            weights = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 -- no other iterator
    except (SafetensorError, OSError) as error:
        raise InteropError(f"{file}: cannot be read: {error}") from None
    return checked(weights, file)


def pickle_of(file: Path, allowed: Iterable[type] = ()) -> dict[str, Any]:
    """
    What `torch.save` wrote.

    Args:
        allowed: Classes that may be among it, beside tensors and plain Python values.
    """
    with _explained(file):
        _refuse_packed(file)
        with torch.serialization.safe_globals(list(allowed)):
            found = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    return _mapping(found, file)


def _refuse_packed(file: Path) -> None:
    """What PyTorch writes is a zip archive without compression: then it holds no more than its file has bytes."""
    if not zipfile.is_zipfile(file):
        raise InteropError(
            f"{file}: is no archive of PyTorch, or of one before 1.6: load it where it is trusted, and torch.save it"
        )
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    packed = [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
    if packed or sum(entry.file_size for entry in entries) > file.stat().st_size:
        raise InteropError(
            f"{file}: its contents are compressed, which those of PyTorch never are: torch.save it again"
        )


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    try:
        yield
    except InteropError:
        raise
    except UNREADABLE as error:
        lines = [line.strip() for line in str(error).splitlines() if "GLOBAL" in line or "Unsupported" in line]
        reason = (lines or str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InteropError(f"{file}: cannot be read without running code from it: {reason:.200}") from None


def checked(weights: dict[str, Any], file: Path) -> dict[str, Tensor]:
    """The same, if they are floating-point tensors that are no larger than their file, all values finite."""
    for name, weight in weights.items():
        if not isinstance(weight, Tensor) or weight.is_sparse or weight.is_quantized or weight.dtype not in FLOATS:
            kind = weight.dtype if isinstance(weight, Tensor) else type(weight).__name__
            raise InteropError(f"{file}: {name} is {kind}, and must be an ordinary tensor of floating-point numbers")
        if weight.numel() * weight.element_size() > file.stat().st_size:
            raise InteropError(f"{file}: {name} claims the shape {tuple(weight.shape)}, more than the file holds")
        if not torch.isfinite(weight).all():
            raise InteropError(f"{file}: {name} has values that are not finite (NaN or infinite)")
    return weights
