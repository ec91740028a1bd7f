"""Pairs and a tokenizer to token ids in a memory-mapped file, and these to the tensors of a batch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

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
from .subword_dropout import SubwordDropout, hashed, ranges
from .tokenizer import Encoder

Item = TypeVar("Item")

SCHEMA = pa.schema(
    {
        "source": pa.list_(pa.string()),
        "target": pa.string(),
        "source_ids": pa.list_(pa.int32()),
        "target_ids": pa.list_(pa.int32()),
    }
)


@dataclass
class Skipped:
    """The pairs that were left out: for each reason how many, and where the first of them is."""

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
    """The most tokens of a source and of a target, <eos> included."""

    source: int
    target: int


def encode_corpus(
    pairs: Iterable[Pair], tokenizer: PreTrainedTokenizerFast, limits: LengthLimits, file: Path
) -> tuple[datasets.Dataset, Skipped]:
    """
    Write the pairs and their ids to `file`, and map it into memory.

    Empty and over-long pairs are left out and counted.
    """
    encoder, skipped, written = Encoder(tokenizer), Skipped(), 0
    partial = file.with_name(f"{file.name}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:
        for some in _in_groups_of(1000, _not_empty(pairs, skipped)):
            ids = zip(encoder.sources([p.source for p in some]), encoder.targets([p.target for p in some]), strict=True)
            rows = [
                {"source": pair.source, "target": pair.target, "source_ids": source, "target_ids": target}
                for pair, (source, target) in zip(some, ids, strict=True)
                if _is_short(pair, len(source), len(target), limits, skipped)
            ]
            if rows:
                writer.write_batch(pa.RecordBatch.from_pylist(rows, SCHEMA))
            written += len(rows)
    if not written:
        partial.unlink()
        raise InvalidDataError(f"no pair is left to use; skipped: {skipped}")
    partial.replace(file)
    return datasets.Dataset.from_file(str(file)), skipped


def lengths_of(dataset: datasets.Dataset) -> np.ndarray:
    """(N, 2): how many tokens source and target of every pair have."""
    columns = [dataset.data.column(name) for name in ("source_ids", "target_ids")]
    return np.stack([np.concatenate([np.diff(chunk.offsets) for chunk in column.chunks]) for column in columns], 1)


class TrainingPairs(Dataset[dict[str, list[int]]]):
    """The pairs by (epoch, index): what is random about them is a function of the seed and that key."""

    def __init__(
        self,
        dataset: datasets.Dataset,
        tokenizer: PreTrainedTokenizerFast,
        dropout: SubwordDropout | None = None,
        seed: int = 0,
    ):
        self.dataset = dataset.select_columns(["source", "target"] if dropout else ["source_ids", "target_ids"])
        self.encoder = Encoder(tokenizer)
        self.dropout = dropout
        self.seed = seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Key) -> dict[str, list[int]]:
        (example,) = self.__getitems__([key])
        return example

    def __getitems__(self, keys: Sequence[Key]) -> list[dict[str, list[int]]]:
        """All of a batch, as PyTorch's loaders ask for them: that reads rows much faster than one by one."""
        rows = self.dataset[[index for _, index in keys]]
        ids: Iterable[tuple[list[int], list[int]]]
        if self.dropout:
            texts = [[*source, target] for source, target in zip(rows["source"], rows["target"], strict=True)]
            ids = self._drawn(self.dropout, keys, texts)
        else:
            ids = zip(rows["source_ids"], rows["target_ids"], strict=True)
        return [{"input_ids": source, "labels": target} for source, target in ids]

    def _drawn(
        self, dropout: SubwordDropout, keys: Sequence[Key], texts: Sequence[Sequence[str]]
    ) -> Iterator[tuple[list[int], list[int]]]:
        counts = np.array([len(of_pair) for of_pair in texts])
        epochs, indices = (np.repeat(numbers, counts) for numbers in np.array(keys).T)
        seeds = hashed(self.seed, epochs, indices, ranges(np.zeros_like(counts), counts))
        drawn = iter(dropout([text for of_pair in texts for text in of_pair], seeds))
        for of_pair in texts:
            *source, target = (next(drawn) for _ in of_pair)
            yield self.encoder.joined(source), self.encoder.joined([target])

    @property
    def lengths(self) -> np.ndarray | Callable[[int], np.ndarray]:
        """(N, 2): how many tokens source and target of every pair have; with dropout a function of the epoch."""
        return lengths_of(self.dataset) if self.dropout is None else self._lengths_in

    def _lengths_in(self, epoch: int) -> np.ndarray:
        keys = ((epoch, index) for index in range(len(self)))
        examples = (example for some in _in_groups_of(1000, keys) for example in self.__getitems__(some))
        return np.array([(len(example["input_ids"]), len(example["labels"])) for example in examples])


@dataclass(frozen=True)
class PairCollator:
    """Pads on the right: sources with padding that the mask hides, targets with what the loss ignores."""

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


def _in_groups_of(size: int, items: Iterable[Item]) -> Iterator[list[Item]]:
    remaining = iter(items)
    while some := list(islice(remaining, size)):
        yield some
