"""The section `data` of a recipe: where the pairs are, what their columns hold, and how long they may be."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

from ..data import held_out
from ..data.corpus import Column, Corpus, GeneratedPairs, HubDataset, ParallelText, Symbols, Table
from ..data.dataset import LengthLimits
from .places import Places, located
from .values import RecipeError, checked, mapping, typed, unknown_key

SPLITS = ("train", "validation", "test")

EXAMPLES: Mapping[type[Corpus], tuple[str, str]] = {
    ParallelText: ("{source: train.en, target: train.de}", "two text files, line by line"),
    Table: ("{file: pairs.tsv, source: 0, target: 1}", "a table: .tsv, .csv, .jsonl or .parquet"),
    HubDataset: ("{dataset: wmt/wmt14, name: de-en, source: en, target: de}", "what datasets.load_dataset loads"),
    GeneratedPairs: ("{generated: spoken_forms, split: train, size: 1000}", "generated pairs, without any file"),
}
"""For each kind of corpus, how it is written and what it is."""

OF_VALIDATION = {
    "{share: 0.02}": "this share of the training pairs, which are not trained on",
    "500": "likewise the pairs of so many sources",
}
"""Other values of `data.validation`, and what they are."""

SIGNS: Mapping[str, type[Corpus]] = {"generated": GeneratedPairs, "dataset": HubDataset, "file": Table}
"""The keys that tell the kind of a corpus. One that has none of them is parallel text."""


@dataclass(frozen=True)
class DataSection:
    """Where the training, validation and test pairs are, and how many tokens they may have, and what the card says."""

    train: tuple[Corpus, ...]
    validation: tuple[Corpus, ...]
    test: tuple[Corpus, ...] = ()
    source_language: str | None = None
    target_language: str | None = None
    license: str | None = None
    max_source_length: int = 256
    max_target_length: int = 256

    @property
    def limits(self) -> LengthLimits:
        return LengthLimits(self.max_source_length, self.max_target_length)


@dataclass(frozen=True)
class Starts:
    """Where relative paths of corpora start: at the folder of the data, but for those that were typed."""

    places: Places
    folder: Path

    def located(self, path: str, where: str) -> Path:
        return located(path, self.places.typed_start(where) or self.folder, where)


def read_data_section(section: Mapping[str, Any], places: Places) -> DataSection:
    """The section as it stands in YAML, checked."""
    values = {key: value for key, value in section.items() if key not in (*SPLITS, "folder")}
    folder = places.folder(section.get("folder"))
    given = {split: section[split] for split in SPLITS if section.get(split) is not None}
    for split in ("train", "validation"):
        if split not in given:
            raise RecipeError(f"data.{split}: is missing\n{_kinds(split)}")
    amount = _amount_held_out(given["validation"])
    if amount is not None:
        del given["validation"]
    starts = Starts(places, folder)
    corpora = {split: _corpora(value, starts, split) for split, value in given.items()}
    _check_weights(corpora)
    _check_columns(corpora)
    if amount is not None:
        corpora["train"], corpora["validation"] = held_out.split(corpora["train"], amount)
    values = checked(DataSection, values, "data", ["folder", *SPLITS])
    return DataSection(**values | corpora)


def _kinds(split: str) -> str:
    """How corpora are written, for a message about one that is not right."""
    kinds = dict(EXAMPLES.values()) | (OF_VALIDATION if split == "validation" else {})
    width = max(map(len, kinds))
    lines = [f"  {example:{width}}  {what}" for example, what in kinds.items()]
    return "\n".join([f"data.{split} is one of the following (or a list of several corpora):", *lines])


def _amount_held_out(value: Any) -> float | int | None:
    """The share or number of training pairs in `data.validation`; None if it names corpora."""
    where = "data.validation"
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise RecipeError(f"{where}: {value} must be at least 1")
        return value
    if not isinstance(value, dict) or "share" not in value:
        return None
    for key in value:
        if key != "share":
            raise RecipeError(f"{where}: {key!r} cannot stand beside share")
    share: float = typed(value["share"], float, f"{where}.share")
    if not 0 < share < 1:
        raise RecipeError(f"{where}.share: {share} must be more than 0 and less than 1, as in {{share: 0.02}}")
    return share


def _corpora(value: Any, starts: Starts, split: str) -> tuple[Corpus, ...]:
    corpora = value if isinstance(value, list) else [value]
    names = [f"data.{split}[{number}]" for number in range(len(corpora))] if len(corpora) > 1 else [f"data.{split}"]
    if not corpora:
        raise RecipeError(f"data.{split}: is empty\n{_kinds(split)}")
    try:
        return tuple(_corpus(corpus, starts, name) for corpus, name in zip(corpora, names, strict=True))
    except CorpusFormError as error:
        raise RecipeError(f"{error}\n{_kinds(split)}") from None


class CorpusFormError(RecipeError):
    """A corpus that is not written as any kind of corpus is."""


def _corpus(value: Any, starts: Starts, where: str) -> Corpus:
    """The keys tell the kind of corpus."""
    try:
        values = dict(mapping(value, where))
    except RecipeError as error:
        raise CorpusFormError(str(error)) from None
    kind = next((kind for key, kind in SIGNS.items() if key in values), ParallelText)
    known = {field.name: field.default is MISSING for field in fields(kind) if field.name != "symbols"}
    for key in values:
        if key not in known:
            raise CorpusFormError(unknown_key(where, key, [*known, *SIGNS]))
    for key, is_needed in known.items():
        if is_needed and key not in values:
            raise CorpusFormError(f"{where}.{key}: is missing")
    symbols = _take_columns(values, kind, where) if kind is not GeneratedPairs else ()
    values = checked(kind, values, where)
    _check_prefix(values.get("prefix", ""), where)
    for key, value in values.items():
        if isinstance(value, Path):
            values[key] = starts.located(str(value), f"{where}.{key}")
    if kind is HubDataset and (place := starts.located(values["dataset"], f"{where}.dataset")).is_dir():
        values["dataset"] = str(place)
    return kind(**values, symbols=symbols)


def _take_columns(values: dict[str, Any], kind: type[Corpus], where: str) -> tuple[Symbols | None, ...]:
    """Put the names of columns in the place of what says more of them, and return what are symbols among them."""
    is_table = kind is not ParallelText
    name = "column" if is_table else "file"
    sources = values["source"] if is_table and isinstance(values["source"], list) else [values["source"]]
    if not sources:
        raise RecipeError(f"{where}.source: has no column")
    columns = [_column(source, name, f"{where}.source") for source in sources]
    values["target"], of_target = _column(values["target"], name, f"{where}.target")
    names = [column for column, _ in columns]
    values["source"] = names if is_table else names[0]
    symbols = (*(of_source for _, of_source in columns), of_target)
    return symbols if any(symbols) else ()


def _column(value: Any, name: str, where: str) -> tuple[Any, Symbols | None]:
    """`X`, or `{column: X, as: words, separator: ";"}`; for parallel text `file` in the place of `column`."""
    if not isinstance(value, dict):
        return typed(value, str if name == "file" else Column, where), None
    known = (name, "as", "separator")
    for key in value:
        if key not in known:
            raise RecipeError(f"{unknown_key(where, str(key), known)}; an example is {_example_of_symbols(name)}")
    if isinstance(value.get(name, {}), dict) or "as" not in value:
        raise RecipeError(f"{where}: {value!r} is not as in {_example_of_symbols(name)}")
    if value["as"] != "words":
        raise RecipeError(f"{where}.as: {value['as']!r} must be 'words'; ordinary text is just the {name}")
    separator = typed(value.get("separator", Symbols().separator), str, f"{where}.separator")
    if not _is_in_a_line(separator) or not separator:
        raise RecipeError(f"{where}.separator: {separator!r} must be text without a line break")
    return _column(value[name], name, f"{where}.{name}")[0], Symbols(separator)


def _example_of_symbols(name: str) -> str:
    return f'{{{name}: X, as: words, separator: ";"}}, where X holds symbols, each of which is one token'


def _check_prefix(prefix: str, where: str) -> None:
    if not _is_in_a_line(prefix):
        raise RecipeError(f"{where}.prefix: {prefix!r} must be text without a line break")


def _is_in_a_line(text: str) -> bool:
    return text.splitlines() in ([], [text])


def _check_weights(corpora: Mapping[str, Sequence[Corpus]]) -> None:
    """Weights say how to mix the training corpora: each has one, or none has."""
    for split, of_split in corpora.items():
        for corpus in of_split:
            weight = corpus.weight
            if weight is not None and split != "train":
                raise RecipeError(f"data.{split}: weight ({weight}) has an effect in data.train only: take it out")
            if weight is not None and not 0 < weight < math.inf:
                raise RecipeError(f"data.{split}: weight ({weight}) must be more than 0, and finite")
    with_weight = [number for number, corpus in enumerate(corpora["train"]) if corpus.weight is not None]
    if len(with_weight) not in (0, len(corpora["train"])):
        missing = next(number for number in range(len(corpora["train"])) if number not in with_weight)
        raise RecipeError(
            f"data.train[{missing}]: has no weight, and data.train[{with_weight[0]}] has one: give all or none"
        )


def _check_columns(corpora: Mapping[str, Sequence[Corpus]]) -> None:
    """Where some columns hold symbols, the model must find the same in those of all corpora."""
    first = corpora["train"][0]
    for split, of_split in corpora.items():
        for number, corpus in enumerate(of_split):
            ours = corpus.source_symbols, corpus.target_symbols
            if any(chain(first.symbols, corpus.symbols)) and ours != (first.source_symbols, first.target_symbols):
                raise RecipeError(
                    f"data.{split}{f'[{number}]' if len(of_split) > 1 else ''}: has {_described(corpus)}, and the "
                    f"first corpus of data.train has {_described(first)}: they must be the same in all corpora"
                )


def _described(corpus: Corpus) -> str:
    def kind(symbols: Symbols | None) -> str:
        return f"symbols between {symbols.separator!r}" if symbols else "text"

    return f"sources of {' and '.join(map(kind, corpus.source_symbols))}, and targets of {kind(corpus.target_symbols)}"
