"""The pairs of texts over which a model is looked at: those of its run, or those of a file."""

from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
from transformers import PreTrainedModel

from ..data.corpus import lines_of, text_of
from ..data.dataset import prefixes_of
from ..data.errors import InvalidDataError
from ..inference.translator import Translator
from ..run_directory import DATA
from .attention import of_allowed_length

PAIRS = 300
"""How many, if nothing else is said."""


@dataclass(frozen=True)
class Pairs:
    """
    Args:
        name: Where they come from.
        source_ids: What the model reads, with prefix and <eos>.
        target_ids: With <eos>.
        prefixes: What is read before each source.
    """

    name: str
    sources: list[tuple[str, ...]]
    targets: list[str]
    source_ids: list[list[int]]
    target_ids: list[list[int]]
    prefixes: list[str]

    def __len__(self) -> int:
        return len(self.sources)


def pairs_for(
    run: Path, translator: Translator, file: Path | None = None, number: int | None = PAIRS, prefix: str = ""
) -> Pairs:
    """
    Pairs of the file; without one, of the run's own validation, spread evenly over all of it.

    Args:
        prefix: What is read before each source of a file. Of validation pairs those with this prefix; all if not given.
    """
    if file is not None:
        return pairs_in(file, translator, number, prefix)
    encoded = encoded_pairs(run, "validation")
    if encoded is None:
        raise InvalidDataError(
            f"{run}: has no {DATA}/validation.arrow, as a model that was loaded or published has none: give "
            "--data FILE, a source, a tab and a target in each line"
        )
    prefixes = prefixes_of(encoded)
    places = np.array([place for place, other in enumerate(prefixes) if prefix in ("", other)])
    if not len(places):
        known = ", ".join(sorted({repr(other) for other in prefixes if other})) or "none"
        raise InvalidDataError(f"prefix {prefix!r}: no validation pair of {run} has it; their prefixes: {known}")
    number = min(number or len(places), len(places))
    chosen = places[np.linspace(0, len(places) - 1, number).round().astype(int)].tolist()
    rows = encoded[chosen]
    name = f"{number} of the {len(places):,} validation pairs" + (f" with the prefix {prefix!r}" if prefix else "")
    sources = [tuple(source) for source in rows["source"]]
    return Pairs(
        name, sources, rows["target"], rows["source_ids"], rows["target_ids"], [prefixes[place] for place in chosen]
    )


def pairs_in(file: Path, translator: Translator, number: int | None = None, prefix: str = "") -> Pairs:
    """
    The first pairs of a file whose lines are the columns of a source and a target, separated by tabs.

    Args:
        number: How many; all of them if not given.
        prefix: What is read before each source of a file.
    """
    sources: list[tuple[str, ...]] = []
    targets: list[str] = []
    for line, content in enumerate(lines_of(file), 1):
        if number is not None and len(sources) == number:
            break
        *parts, target = text_of(content, f"{file}:{line}").split("\t")
        if len(parts) != translator.columns or not target.strip() or not all(part.strip() for part in parts):
            raise InvalidDataError(
                f"{file}:{line}: has not {translator.columns + 1} filled columns, separated by tabs: "
                f"{translator.columns} of the source and one of the target"
            )
        sources.append(tuple(parts))
        targets.append(target)
    if not sources:
        raise InvalidDataError(f"{file}: has no pairs")
    source_ids, target_ids = translator.encoder.sources(sources, prefix), translator.encoder.targets(targets)
    for line, (source, of_target) in enumerate(zip(source_ids, target_ids, strict=True), 1):
        of_allowed_length(source, f"{file}:{line}: the source", translator)
        of_allowed_length(of_target, f"{file}:{line}: the target", translator)
    return Pairs(f"{len(sources)} pairs of {file}", sources, targets, source_ids, target_ids, [prefix] * len(sources))


def encoded_pairs(run: Path, split: str) -> datasets.Dataset | None:
    """What the training has written, if it is still there."""
    file = run / DATA / f"{split}.arrow"
    return datasets.Dataset.from_file(str(file)) if file.is_file() else None


def training_counts(run: Path, model: PreTrainedModel) -> tuple[np.ndarray, np.ndarray] | None:
    """How often each token is in the sources and in the targets of the training; None if they are not there."""
    encoded = encoded_pairs(run, "train")
    if encoded is None:
        return None
    size = model.config.vocab_size
    source, target = (counts_in(encoded, f"{side}_ids", size) for side in ("source", "target"))
    return source, target


def counts_in(encoded: datasets.Dataset, column: str, size: int) -> np.ndarray:
    counts = np.zeros(size, np.int64)
    for chunk in encoded.data.column(column).chunks:
        counts += np.bincount(chunk.flatten().to_numpy(), minlength=size)
    return counts
