"""
A recipe's tokenizer and encoded pairs: made once, then read from the run directory.

`prepared.json` records what they were made of, so that a run never goes on with another text or tokenizer than it
began with: not if files moved or changed, and not if the encoded pairs were deleted.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import datasets
import numpy as np

from ..data.contents import Checksums, Contents, changes, contents_of
from ..data.corpus import read_pairs
from ..data.dataset import encode_corpora, lengths_of
from ..data.errors import InvalidDataError
from ..data.existing_tokenizer import refuse_dropout, with_tokens
from ..data.saved_tokenizer import PreTrainedTokenizerFast
from ..data.tokenizer import TAG, Columns, Encoder, symbols_in, texts_in, train_tokenizer
from ..files import write_whole
from ..messages import say
from ..run_directory import DATA, PREPARED, RECIPE, TOKENIZER, WEIGHTS, checkpoints_of
from .origin import Origin, new_origin, origin_of, refuse_another_origin, tokenizer_of
from .recipe import Recipe, RecipeError, refuse_another_recipe, refuse_hybrid
from .saving import explained, move_files, unfinished

SPLITS = ("train", "validation")
SOURCES = ("data.folder", "data.train", "data.validation")  # keys that say where the text is


@dataclass(frozen=True)
class Prepared:
    """
    The tokenizer and the encoded pairs of a training.

    Args:
        origin: The model, or the tokenizer, that it starts from, if any.
    """

    tokenizer: PreTrainedTokenizerFast
    train: datasets.Dataset
    validation: datasets.Dataset
    origin: Origin | None = None

    def checksums(self) -> dict[str, str]:
        """What all ranks must have in common."""
        sums = {split: hashlib.sha256(lengths_of(getattr(self, split)).tobytes()).hexdigest() for split in SPLITS}
        numbers = {split: f"{len(getattr(self, split)):,}" for split in SPLITS}
        return {
            "the tokenizer (its checksum)": checksum_of_tokenizer(self.tokenizer),
            **{f"the number of {split} pairs": numbers[split] for split in SPLITS},
            **{f"the lengths of {split} pairs (their checksum)": sums[split] for split in SPLITS},
        }


@dataclass
class Record:
    """
    What was prepared, and of what.

    Args:
        sources: The contents of the corpora of each split; nothing if a version prepared them that kept no record.
        checksums: Of their files, to know these again without reading them.
        tokenizer: The checksum of the tokenizer, once there is one.
        encoded: For each split that is encoded, the number of its pairs and the checksum of their ids.
        places: Where the relative paths of the run's recipe start.
        origin: The fields of an `Origin`: the model or tokenizer that the run was started from, if any.
    """

    sources: dict[str, list[Contents]] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)
    tokenizer: str | None = None
    encoded: dict[str, dict[str, Any]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    origin: dict[str, Any] | None = None

    @classmethod
    def read(cls, run: Path) -> Self | None:
        """None if nothing was prepared, or by a version that kept no record."""
        file = run / PREPARED
        return cls(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None

    def write(self, run: Path) -> None:
        write_whole(run / PREPARED, json.dumps(asdict(self), indent=1))


def prepare(recipe: Recipe, run: Path) -> Prepared:
    """
    Make the tokenizer and the encoded pairs, or take those that are there. On the main process only.

    A run that was prepared or trained goes on with the same text and tokenizer or not at all. A preparation that did
    not come to its end goes on only with the same recipe and text, and otherwise starts again.
    """
    read_test_pairs(recipe)
    run.mkdir(parents=True, exist_ok=True)
    before = Record.read(run)
    is_begun = is_trained(run) or is_encoded(run)
    if not is_begun:
        refuse_hybrid(recipe)
        read_first_pairs(recipe)
    if is_begun:
        refuse_another_recipe(recipe, run / RECIPE, SOURCES if before and before.sources else ())
    record = look_at_sources(recipe, run, before)
    if is_begun and before:
        refuse_another_text(recipe, run, before, record)
    record.origin = look_at_origin(recipe, run, is_begun)
    is_same = before and (before.sources, before.origin) == (record.sources, record.origin)
    if before and (is_begun or (is_same and is_written(recipe, run))):
        record.tokenizer, record.encoded = before.tokenizer, before.encoded
    record.places = recipe.places.as_json()
    record.write(run)
    write_whole(run / RECIPE, recipe.text)
    make_tokenizer(recipe, run, record, is_begun)
    refuse_unknown_tags(recipe, Encoder(PreTrainedTokenizerFast.from_pretrained(run)))
    for split in SPLITS:
        encode(recipe, run, split, record)
    return read_prepared(run)


def read_first_pairs(recipe: Recipe) -> None:
    """Find files that are not there or have no such columns before a tokenizer is trained on those that come first."""
    for corpus in (*recipe.data.train, *recipe.data.validation):
        next(iter(corpus), None)


def read_test_pairs(recipe: Recipe) -> None:
    """Find what is wrong with the test pairs, which are not encoded, before the training and not after it."""
    if recipe.data.test and not sum(1 for _ in read_pairs(recipe.data.test)):
        raise InvalidDataError("data.test: has no pairs")


def refuse_unknown_tags(recipe: Recipe, encoder: Encoder) -> None:
    """Of the test pairs; the others are encoded before the training."""
    for tag in {corpus.prefix for corpus in recipe.data.test}:
        if TAG.fullmatch(tag):
            encoder.tag(tag)


def read_prepared(run: Path) -> Prepared:
    """What the main process prepared."""
    pairs = {split: datasets.Dataset.from_file(str(encoded_file(run, split))) for split in SPLITS}
    return Prepared(PreTrainedTokenizerFast.from_pretrained(run), **pairs, origin=origin_of(run))


def encoded_file(run: Path, split: str) -> Path:
    return run / DATA / f"{split}.arrow"


def is_encoded(run: Path) -> bool:
    return all(encoded_file(run, split).exists() for split in SPLITS)


def is_trained(run: Path) -> bool:
    """Whether there are weights that were trained with the recipe of the run."""
    return (run / WEIGHTS).exists() or bool(checkpoints_of(run))


def is_written(recipe: Recipe, run: Path) -> bool:
    file = run / RECIPE
    return file.exists() and file.read_text(encoding="utf-8") == recipe.text


def look_at_sources(recipe: Recipe, run: Path, before: Record | None) -> Record:
    """What text the corpora have now. Once it is all encoded, their files may be gone."""
    known = before or Record()
    if is_encoded(run) and not known.sources:
        return known
    checksums = Checksums(known.checksums)
    try:
        sources = {split: [contents_of(c, checksums) for c in getattr(recipe.data, split)] for split in SPLITS}
    except InvalidDataError as error:
        if not is_encoded(run):
            raise
        refuse_another_recipe(
            recipe, run / RECIPE
        )  # the text cannot be compared, so its files must have the same names
        say(f"{error}; going on with the pairs that were encoded before")
        return Record(known.sources, known.checksums)
    return Record(sources, checksums.used)


def refuse_another_text(recipe: Recipe, run: Path, before: Record, now: Record) -> None:
    """A run goes on only with the text that it began with, though its files may be elsewhere."""
    found = [
        f"data.{split}: {change}"
        for split in before.sources
        for change in changes(before.sources[split], now.sources[split], getattr(recipe.data, split))
    ]
    if found:
        raise RecipeError(
            f"{run} was begun with other data: changed is {'; '.join(found)}; choose another --output, or bring back "
            "what it was begun with"
        )


def look_at_origin(recipe: Recipe, run: Path, is_begun: bool) -> dict[str, Any] | None:
    """
    What the recipe starts from, for the record. A run that was begun goes on with the same or not at all.

    It may be gone once the run has what it needs of it: weights in a checkpoint, or the tokenizer alone.
    """
    before = origin_of(run) if is_begun else None
    if before and (checkpoints_of(run) or recipe.model_from is None):
        return asdict(before)
    now = new_origin(recipe)
    refuse_another_origin(run, before, now)
    return asdict(now) if now else None


def make_tokenizer(recipe: Recipe, run: Path, record: Record, is_begun: bool) -> None:
    """Have the tokenizer of the run in its place: the one that it was begun with, or for a new run a new one."""
    place = place_of_tokenizer(run, record.tokenizer) if is_begun or record.tokenizer else None
    if place is None and is_begun:
        raise RecipeError(
            f"{run} was begun with a tokenizer that is neither in {TOKENIZER} nor in a checkpoint any more: bring it "
            "back, or choose another --output"
        )
    if place is None:
        for split in SPLITS:  # what was encoded has the ids of another tokenizer
            encoded_file(run, split).unlink(missing_ok=True)
        record.encoded = {}
        save_tokenizer(new_tokenizer(recipe, record), run)
    elif place != run:
        save_tokenizer(PreTrainedTokenizerFast.from_pretrained(place), run)
    record.tokenizer = checksum_of_tokenizer(PreTrainedTokenizerFast.from_pretrained(run))
    record.write(run)


def new_tokenizer(recipe: Recipe, record: Record) -> PreTrainedTokenizerFast:
    section, corpora = recipe.tokenizer, recipe.data.train
    columns = Columns.in_corpus(corpora[0])
    texts, symbols = texts_in(read_pairs(corpora), columns), symbols_in(read_pairs(corpora), columns)
    prefixes = sorted({corpus.prefix for corpus in corpora} - {""})
    if record.origin is None:
        return train_tokenizer(texts, section.kind, section.vocab_size, section.lowercase, columns, symbols, prefixes)
    tokenizer = with_tokens(tokenizer_of(recipe, Origin(**record.origin)), columns, symbols, prefixes)
    if section.dropout:
        refuse_dropout(tokenizer, texts, section.dropout)
    return tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, run: Path) -> None:
    """Write all of its files or none."""
    aside = unfinished(run) / "tokenizer"
    with explained("the tokenizer", aside, run):
        tokenizer.save_pretrained(aside)
        move_files(aside, run)


def place_of_tokenizer(run: Path, checksum: str | None) -> Path | None:
    """The run, or else the newest checkpoint, that has the tokenizer with a checksum, if that is known."""
    for place in (run, *reversed(checkpoints_of(run))):
        is_there = (place / TOKENIZER).exists()
        if is_there and checksum in (None, checksum_of_tokenizer(PreTrainedTokenizerFast.from_pretrained(place))):
            return place
    return None


def encode(recipe: Recipe, run: Path, split: str, record: Record) -> None:
    """Have the encoded pairs of a split in their file. If they were deleted, they must become the same again."""
    file, before = encoded_file(run, split), record.encoded.get(split)
    if file.exists():
        pairs = datasets.Dataset.from_file(str(file))
        say(f"{split}: {len(pairs):,} pairs, encoded before in {file}")
        record.encoded[split] = before or summary_of(pairs)
    else:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(run)
        dropout = recipe.tokenizer.dropout if split == "train" else 0.0
        pairs, skipped = encode_corpora(getattr(recipe.data, split), tokenizer, recipe.data.limits, file, dropout)
        record.encoded[split] = summary_of(pairs)
        if before and before != record.encoded[split]:
            file.unlink()
            raise RecipeError(
                f"data.{split}: encoded again it has {len(pairs):,} pairs of other tokens than the {before['pairs']:,} "
                f"that {run} was begun with, though the text is the same: another version of tokenizers or "
                "hf_vanilla reads it otherwise; install those of the beginning, or choose another --output"
            )
        say(f"{split}: {len(pairs):,} pairs; skipped: {skipped}")
        if is_trained(run) and not before:
            say(f"{split}: its pairs were deleted, and no record says whether these are the same")
    record.write(run)


def checksum_of_tokenizer(tokenizer: PreTrainedTokenizerFast) -> str:
    """SHA-256 of all that decides which tokens a text has; not of how the last texts were padded and truncated."""
    state = json.loads(tokenizer.backend_tokenizer.to_str()) | {"padding": None, "truncation": None}
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def summary_of(pairs: datasets.Dataset) -> dict[str, Any]:
    """The number of pairs, and a checksum of all their ids."""
    digest = hashlib.sha256()
    for name in ("source_ids", "target_ids"):
        chunks = pairs.data.column(name).chunks
        for chunk in chunks:
            digest.update(np.diff(chunk.offsets))
        for chunk in chunks:
            digest.update(chunk.flatten().to_numpy())
    return {"pairs": len(pairs), "ids": digest.hexdigest()}
