"""
What the text of a corpus is, wherever its files are: by this a training knows the text that it began with.

Files are compared by checksums, so they may be moved, copied, zipped or unzipped. A file whose inode, size and times
are those of a file that was read before is not read again, so that no training waits for gigabytes when it goes on.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from .corpus import Corpus, HubDataset, lines_of, loading, status_of
from .held_out import Part

Contents = dict[str, Any]
"""The fields of a corpus, with checksums in the place of paths. Can be written as JSON."""


class Checksums:
    """
    Checksums of the text in files.

    Args:
        known: Those of an earlier time. `used` are those of now.
    """

    def __init__(self, known: Mapping[str, str]):
        self.known = known
        self.used: dict[str, str] = {}

    def of(self, file: Path) -> str:
        status = status_of(file)
        stamp = f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
        self.used[stamp] = self.used.get(stamp) or self.known.get(stamp) or checksum_of(file)
        return self.used[stamp]


def checksum_of(file: Path) -> str:
    """SHA-256 of a file, or of what is in it if it is gzipped."""
    digest = hashlib.sha256()
    for line in lines_of(file):
        digest.update(line)
    return digest.hexdigest()


def contents_of(corpus: Corpus, checksums: Checksums) -> Contents:
    if isinstance(corpus, Part):
        return contents_of(corpus.corpus, checksums) | {"held out for validation": corpus.hold_out.amount}
    contents: Contents = {"kind": type(corpus).__name__}
    usual = {
        field.name: field.default for field in fields(Corpus)
    }  # not recorded, as earlier versions had none of them
    for field in fields(corpus):
        value = getattr(corpus, field.name)
        if field.name not in usual or value != usual[field.name]:
            contents[field.name] = checksums.of(value) if isinstance(value, Path) else value
    if isinstance(corpus, HubDataset):
        contents |= _contents_of_dataset(corpus, checksums)
    if corpus.symbols:
        contents["symbols"] = [None if symbols is None else asdict(symbols) for symbols in corpus.symbols]
    return {name: list(value) if isinstance(value, tuple) else value for name, value in contents.items()}


def _contents_of_dataset(corpus: HubDataset, checksums: Checksums) -> Contents:
    """The files of a local folder, or the revision of a dataset on the Hub."""
    folder = Path(corpus.dataset)
    if folder.is_dir():
        files = sorted(path for path in folder.rglob("[!.]*") if path.is_file())
        return {"dataset": {str(file.relative_to(folder)): checksums.of(file) for file in files}}
    import datasets

    with loading(f"dataset {corpus.dataset} ({corpus.name}, {corpus.split})"):
        builder = datasets.load_dataset_builder(corpus.dataset, corpus.name, revision=corpus.revision)
    return {"revision": builder.hash}


def changes(before: Sequence[Contents], now: Sequence[Contents], corpora: Sequence[Corpus]) -> Iterator[str]:
    """What is not as it was before: files by their paths, and other fields with both values."""
    if len(before) != len(now):
        yield f"{len(before)} corpora before, {len(now)} now"
        return
    for old, new, corpus in zip(before, now, corpora, strict=True):
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                value = getattr(corpus.corpus if isinstance(corpus, Part) else corpus, name, None)
                is_file = isinstance(value, Path) or isinstance(new.get(name), dict)
                yield f"the text of {value}" if is_file else f"{name} ({old.get(name)} before, {new.get(name)} now)"
