"""From pairs of texts to token ids in a memory-mapped file, and from these to the tensors of a batch."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from .batching import Key
from .corpus import Pair
from .errors import InvalidDataError
from .mixing import Mixture
from .subword_dropout import SubwordDropout, Words, hashed
from .tokenizer import Encoder

SCHEMA = pa.schema(
    {
        "source": pa.list_(pa.string()),
        "target": pa.string(),
        "source_ids": pa.list_(pa.int32()),
        "target_ids": pa.list_(pa.int32()),
        "prefix": pa.string(),
        "corpus": pa.int32(),
    }
)
"""Files that earlier versions wrote have no prefixes and no numbers of corpora."""

ID_COLUMNS = ("source_ids", "target_ids")
WORD_COLUMNS = ("source_words", "target_words")  # only where there is BPE-dropout


@dataclass
class Skipped:
    """Pairs that are not used: for each reason how many there are, and where the first one is."""

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, where: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.first.setdefault(reason, where)

    def __str__(self) -> str:
        reasons = (f"{count} with {reason} (first: {self.first[reason]})" for reason, count in self.counts.items())
        return "; ".join(reasons) or "none"


@dataclass(frozen=True)
class LengthLimits:
    """The largest number of tokens in a source and in a target, <eos> included. Longer pairs are not used."""

    source: int
    target: int


NO_LIMITS = LengthLimits(sys.maxsize, sys.maxsize)


def encode_corpora(
    corpora: Iterable[Iterable[Pair]],
    tokenizer: PreTrainedTokenizerFast,
    limits: LengthLimits,
    file: Path,
    subword_dropout: float = 0.0,
) -> tuple[datasets.Dataset, Skipped]:
    """
    Write the pairs of all corpora and their ids to `file`, and open it memory-mapped. Empty and too long pairs are left
    out.

    Where `subword_dropout` is more than 0, texts are also written as numbers of words, and the ways to segment these
    words into a second file: see `SubwordDropout`.
    """
    encoder, skipped, written = Encoder(tokenizer), Skipped(), 0
    words = Words(tokenizer, subword_dropout) if subword_dropout else None
    schema = SCHEMA
    for name in WORD_COLUMNS if words else ():
        schema = schema.append(pa.field(name, pa.list_(pa.int32())))
    unfinished = file.with_name(f"{file.name}.partial")
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(unfinished), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for number, some in _in_groups(corpora, 1000, skipped):
            ids = zip(
                encoder.sources([pair.source for pair in some], [pair.prefix for pair in some]),
                encoder.targets([pair.target for pair in some]),
                strict=True,
            )
            rows: list[dict[str, Any]] = [
                {"source": pair.source, "target": pair.target, "source_ids": source, "target_ids": target}
                | {"prefix": pair.prefix, "corpus": number}
                for pair, (source, target) in zip(some, ids, strict=True)
                if _is_short(pair, len(source), len(target), limits, skipped)
            ]
            if words:
                for row in rows:
                    row["source_words"] = words.of(encoder.source_pieces(row["source"], row["prefix"]))
                    row["target_words"] = words.of(encoder.target_pieces(row["target"]))
            if rows:
                writer.write_batch(pa.RecordBatch.from_pylist(rows, schema))
            written += len(rows)
    if not written:
        unfinished.unlink()
        raise InvalidDataError(f"no pair is left to use; skipped: {skipped}")
    if words:
        words.write(segmentations_file(file))
    unfinished.replace(file)
    return datasets.Dataset.from_file(str(file)), skipped


def segmentations_file(file: Path) -> Path:
    """The second file of `encode_corpora`, beside the first."""
    return file.with_suffix(".segmentations.arrow")


def subword_dropout_of(dataset: datasets.Dataset) -> SubwordDropout:
    """The BPE-dropout for a corpus that `encode_corpora` has written."""
    file = Path(dataset.cache_files[0]["filename"])
    segmentations = segmentations_file(file)
    if not {*WORD_COLUMNS} <= {*dataset.column_names} or not segmentations.exists():
        raise InvalidDataError(
            f"{file}: was not encoded for BPE-dropout (tokenizer.dropout), or by an earlier version of hf_vanilla: "
            "train into a new directory (--output)"
        )
    return SubwordDropout(segmentations)


def lengths_of(dataset: datasets.Dataset) -> np.ndarray:
    """(N, 2): the source and target length of every pair, in tokens."""
    columns = [dataset.data.column(name) for name in ID_COLUMNS]
    return np.stack([np.concatenate([np.diff(chunk.offsets) for chunk in column.chunks]) for column in columns], 1)


def prefixes_of(dataset: datasets.Dataset) -> list[str]:
    """The prefix of every pair: none in files that earlier versions wrote."""
    return dataset["prefix"][:] if "prefix" in dataset.column_names else [""] * len(dataset)


def sizes_of(dataset: datasets.Dataset, corpora: int) -> np.ndarray:
    """How many pairs there are of each corpus."""
    sizes = np.zeros(corpora, np.int64)
    for chunk in dataset.data.column("corpus").chunks:
        sizes += np.bincount(chunk, minlength=corpora)
    return sizes


def mixture_of(dataset: datasets.Dataset, weights: Sequence[float | None], seed: int = 0) -> Mixture | None:
    """What an epoch consists of, if the corpora have weights. (With one corpus, a weight changes nothing.)"""
    given = [weight for weight in weights if weight is not None]
    if len(given) < 2:
        return None
    sizes = sizes_of(dataset, len(weights))
    for number, size in enumerate(sizes):
        if not size:
            raise InvalidDataError(
                f"data.train[{number}]: none of its pairs can be used, as they are empty or too long, so it cannot "
                f"have its share (weight: {weights[number]:g}); correct it, or take it out"
            )
    return Mixture(sizes.tolist(), given, seed)


class TrainingPairs(Dataset[dict[str, list[int]]]):
    """
    Encoded pairs by epoch and index, segmented anew in each epoch if there is BPE-dropout.

    With a `mixture` the index is a place in the epoch, where the same pair may have several.

    Args:
        limits: A text that BPE-dropout would make longer is segmented as usual.
    """

    def __init__(
        self,
        dataset: datasets.Dataset,
        dropout: SubwordDropout | None = None,
        seed: int = 0,
        mixture: Mixture | None = None,
        limits: LengthLimits = NO_LIMITS,
    ):
        columns = (*ID_COLUMNS, *WORD_COLUMNS) if dropout else ID_COLUMNS
        self.limits = (limits.source, limits.target)
        self.dataset = dataset.select_columns(columns).with_format("arrow" if dropout else None)
        self.dropout = dropout
        self.seed = seed
        self.mixture = mixture

    def __len__(self) -> int:
        return len(self.dataset) if self.mixture is None else len(self.mixture)

    def __getitem__(self, key: Key) -> dict[str, list[int]]:
        (example,) = self.__getitems__([key])
        return example

    def __getitems__(self, keys: Sequence[Key]) -> list[dict[str, list[int]]]:
        """A whole batch. PyTorch's DataLoader calls this if it is there; it is much faster than row by row."""
        epochs, indices = np.array(keys).T
        rows = self.dataset[self._rows(epochs, indices)]
        if self.dropout:
            sides = [self._segmented(self.dropout, rows, epochs, indices, side) for side in range(2)]
        else:
            sides = [rows["source_ids"], rows["target_ids"]]
        return [{"input_ids": source, "labels": target} for source, target in zip(*sides, strict=True)]

    def _segmented(
        self, dropout: SubwordDropout, rows: pa.Table, epochs: np.ndarray, indices: np.ndarray, side: int
    ) -> list[list[int]]:
        words = rows[WORD_COLUMNS[side]].combine_chunks()
        drawn, usual = dropout(words, self._seeds(epochs, indices, side)), rows[ID_COLUMNS[side]]
        return [ids if len(ids) <= self.limits[side] else usual[row].as_py() for row, ids in enumerate(drawn)]

    @property
    def lengths(self) -> np.ndarray | Callable[[int], np.ndarray]:
        """(N, 2): source and target length of every pair; or a function from the epoch to these, if they change."""
        if self.dropout:
            return partial(self._lengths_with_dropout, self.dropout)
        lengths = lengths_of(self.dataset)
        return lengths if self.mixture is None else lambda epoch: lengths[self._rows(epoch, np.arange(len(self)))]

    def _lengths_with_dropout(self, dropout: SubwordDropout, epoch: int) -> np.ndarray:
        rows = self._rows(epoch, np.arange(len(self)))
        indices = np.argsort(rows, kind="stable")  # so that the file is read from its beginning to its end
        in_order, lengths = rows[indices], np.empty((len(self), 2), np.int32)
        for side, name in enumerate(WORD_COLUMNS):
            start = 0
            for texts in self.dataset.data.column(name).chunks:
                first, last = in_order.searchsorted([start, start + len(texts)])
                there = indices[first:last]
                lengths[there, side] = dropout.lengths(texts.take(rows[there] - start), self._seeds(epoch, there, side))
                start += len(texts)
        return np.where(lengths <= self.limits, lengths, lengths_of(self.dataset)[rows])

    def _rows(self, epochs: np.ndarray | int, indices: np.ndarray) -> np.ndarray:
        return indices if self.mixture is None else self.mixture.rows(epochs, indices)

    def _seeds(self, epochs: np.ndarray | int, indices: np.ndarray, side: int) -> np.ndarray:
        return hashed(self.seed, epochs, indices, side)


@dataclass(frozen=True)
class PairCollator:
    """Pads on the right: sources with `pad_token_id`, which the attention mask hides, labels with `ignored`."""

    pad_token_id: int
    ignored: int = -100

    def __call__(self, examples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        sources = [example["input_ids"] for example in examples]
        batch = {
            "input_ids": _padded(sources, self.pad_token_id),
            "attention_mask": _padded([[1] * len(ids) for ids in sources], 0),
        }
        if "labels" in examples[0]:
            batch["labels"] = _padded([example["labels"] for example in examples], self.ignored)
        return batch


def _padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    padded = np.full((len(rows), max(map(len, rows))), filler, dtype=np.int64)
    for line, row in zip(padded, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(padded)


def _not_empty(pairs: Iterable[Pair], skipped: Skipped) -> Iterator[Pair]:
    for pair in pairs:
        if not all(part.strip() for part in pair.source):
            skipped.add("an empty source", pair.where)
        elif not pair.target.strip():
            skipped.add("an empty target", pair.where)
        else:
            yield pair


def _is_short(pair: Pair, source_length: int, target_length: int, limits: LengthLimits, skipped: Skipped) -> bool:
    if source_length > limits.source:
        skipped.add(f"a source of more than {limits.source} tokens", pair.where)
    elif target_length > limits.target:
        skipped.add(f"a target of more than {limits.target} tokens", pair.where)
    else:
        return True
    return False


def _in_groups(corpora: Iterable[Iterable[Pair]], size: int, skipped: Skipped) -> Iterator[tuple[int, list[Pair]]]:
    """Up to `size` pairs at a time that are not empty, with the number of their corpus."""
    for number, pairs in enumerate(corpora):
        remaining = _not_empty(pairs, skipped)
        while some := list(islice(remaining, size)):
            yield number, some
