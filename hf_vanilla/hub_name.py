"""
How a model is named: a directory, or a repository on the Hub, `user/name` or `user/name@revision`.

A revision is a branch, a tag or a commit. A directory of that name wins. All files of a model are taken from one
commit, so a revision holds for its weights, its tokenizer and its code alike.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined] # documented, but not in its __all__

from .run_directory import RECIPE

REVISION = re.compile(r"(?!.*\.\.)\w[\w.+-]*(/\w[\w.+-]*)*", re.ASCII)  # it becomes a path in the cache: no ".."
FILES = ("*.json", "*.safetensors", "*.py", "*.txt", RECIPE)  # no pickles
OF_SUBFOLDERS = "*/*"  # checkpoints, other formats


class ModelNameError(OSError):
    """There is no model of this name. It is an OSError as transformers raises for that."""


@dataclass(frozen=True)
class HubName:
    """A repository on the Hub. Without a revision it is the newest commit of its main branch."""

    repository: str
    revision: str | None = None

    @property
    def url(self) -> str:
        return f"https://huggingface.co/{self.repository}" + (f"/tree/{self.revision}" if self.revision else "")


def hub_name(name: str) -> HubName:
    """Split a name; raise an error if no model on the Hub can be called so."""
    repository, at, revision = name.partition("@")
    try:
        validate_repo_id(repository)
    except HFValidationError:
        raise ModelNameError(
            f"{name!r} is no directory, and no model on the Hub can have this name: give a directory, user/name or "
            "user/name@revision"
        ) from None
    if at and not REVISION.fullmatch(revision):
        raise ModelNameError(f"{name!r}: what stands after @ must be a branch, a tag or a commit, such as main or v1.0")
    return HubName(repository, revision or None)


def may_be_on_hub(name: str) -> bool:
    try:
        hub_name(name)
    except ModelNameError:
        return False
    return True


def folder_of(name: str | Path, files: Sequence[str] = FILES, **options: Any) -> Path:
    """
    The directory, or where the files of the repository were downloaded to.

    Args:
        files: Patterns of their names; those in subfolders are left out.
        options: Of `huggingface_hub.snapshot_download`, such as `token`.
    """
    if str(name) and Path(name).is_dir():
        return Path(name)
    found = hub_name(str(name))
    if found.revision is not None:
        if options.get("revision") not in (None, found.revision):
            raise ModelNameError(f"{name}: another revision is given, too ({options['revision']}): take one out")
        options = options | {"revision": found.revision}
    try:
        return Path(
            snapshot_download(found.repository, allow_patterns=list(files), ignore_patterns=[OF_SUBFOLDERS], **options)
        )
    except Exception as error:  # of the network, of the Hub, of the file system: all kinds
        reason = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ModelNameError(
            f"{str(name)!r} is no directory here, and could not be downloaded from the Hub: "
            f"{reason[0] if reason else type(error).__name__}"
        ) from None
