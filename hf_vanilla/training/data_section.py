"""The section `data` of a recipe: where the pairs are, what their columns hold, and how long they may be."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from ..data.corpus import Corpus, GeneratedPairs, HubDataset, ParallelText, Symbols, Table
from .values import RecipeError, checked, mapping, typed, unknown_key

SPLITS = ("train", "validation", "test")

EXAMPLES: Mapping[type[Corpus], tuple[str, str]] = {
    ParallelText: ("{source: train.en, target: train.de}", "two text files, line by line"),
    Table: ("{file: pairs.tsv, source: 0, target: 1}", "a table: .tsv, .csv, .jsonl or .parquet"),
    HubDataset: ("{dataset: wmt/wmt14, name: de-en, source: en, target: de}", "what datasets.load_dataset loads"),
    GeneratedPairs: ("{generated: spoken_forms, split: train, size: 1000}", "generated pairs, without any file"),
}
"""For each kind of corpus, how it is written and what it is."""

SIGNS: Mapping[str, type[Corpus]] = {"generated": GeneratedPairs, "dataset": HubDataset, "file": Table}
"""The keys that tell the kind of a corpus. One that has none of them is parallel text."""

IN_A_COLUMN = {"as", "separator"}  # keys beside `column`, or beside `file` for parallel text


@dataclass(frozen=True)
class DataSection:
    """Where the training, validation and test pairs are, and how many tokens they may have."""

    train: tuple[Corpus, ...]
    validation: tuple[Corpus, ...]
    test: tuple[Corpus, ...] = ()
    source_language: str | None = None
    target_language: str | None = None
    max_source_length: int = 256
    max_target_length: int = 256


def read_data_section(section: Mapping[str, Any], folder: Path) -> DataSection:
    """
    The section as it stands in YAML, checked.

    Args:
        folder: Where its relative paths start.
    """
    values = dict(section)
    folder = folder / typed(values.pop("folder", "."), str, "data.folder")
    for split in ("train", "validation"):
        if values.get(split) is None:
            raise RecipeError(f"data.{split}: is missing. {kinds_of_corpora()}")
    for split in SPLITS:
        if split in values:
            values[split] = list(_corpora(values[split], folder, f"data.{split}"))
    return DataSection(**checked(DataSection, values, "data", ["folder"]))


def kinds_of_corpora() -> str:
    width = max(len(example) for example, _ in EXAMPLES.values())
    lines = [f"  {example:{width}}  {what}" for example, what in EXAMPLES.values()]
    return "\n".join(["Texts are given as one of, or as a list of several", *lines])


def _corpora(value: Any, folder: Path, where: str) -> Iterator[Corpus]:
    corpora = value if isinstance(value, list) else [value]
    for number, corpus in enumerate(corpora):
        yield _corpus(corpus, folder, where + (f"[{number}]" if len(corpora) > 1 else ""))


def _corpus(value: Any, folder: Path, where: str) -> Corpus:
    """The keys tell the kind of corpus."""
    try:
        values = dict(mapping(value, where))
    except RecipeError as error:
        raise RecipeError(f"{error}. {kinds_of_corpora()}") from None
    kind = next((kind for key, kind in SIGNS.items() if key in values), ParallelText)
    is_table = kind in (Table, HubDataset)
    known = [field.name for field in fields(kind) if field.name != "symbols"]
    for key in values:
        if key not in known:
            raise RecipeError(f"{unknown_key(where, key, [*known, *SIGNS])}. {kinds_of_corpora()}")
    for key in known:
        if key not in values and kind.__dataclass_fields__[key].default is MISSING:
            raise RecipeError(f"{where}.{key}: is missing. {kinds_of_corpora()}")
    symbols: list[Symbols | None] = []
    if kind is not GeneratedPairs:
        sources = values["source"] if is_table and isinstance(values["source"], list) else [values["source"]]
        name = "column" if is_table else "file"
        columns = [_column(column, name, f"{where}.source") for column in sources]
        values["target"], of_target = _column(values["target"], name, f"{where}.target")
        names, symbols = [column for column, _ in columns], [*(what for _, what in columns), of_target]
        values["source"] = names if is_table else names[0]
    values = checked(kind, values, where)
    if any(symbols):
        values["symbols"] = tuple(symbols)
    located: dict[str, Any] = {
        key: folder / value if isinstance(value, Path) else value for key, value in values.items()
    }
    return kind(**located)


def _column(value: Any, name: str, where: str) -> tuple[Any, Symbols | None]:
    """`X`, or `{column: X, as: words, separator: ";"}`; for parallel text `file` in the place of `column`."""
    if not isinstance(value, dict):
        return value, None
    if name not in value or not value.keys() <= {name, *IN_A_COLUMN}:
        raise RecipeError(f"{where}: {value!r} must be a {name}, or as in {{{name}: X, as: words, separator: ' '}}")
    if value.get("as", "words") != "words":
        raise RecipeError(f"{where}.as: {value['as']!r} must be 'words', or not be given for ordinary text")
    separator = typed(value.get("separator", " "), str, f"{where}.separator")
    if not separator or len(separator.splitlines()) != 1:
        raise RecipeError(f"{where}.separator: {separator!r} must be some text without a line break")
    return value[name], Symbols(separator) if "as" in value else None
