"""
What the original Transformer can do beyond what it was trained on, with the spoken forms of the quick start.

    python scripts/generalisation.py length runs/length
    python scripts/generalisation.py combinations runs/combinations

A source is a list of spoken forms ("noon and then three pounds"), its target what is written ("12:00 £3").

- `length`: trained on lists of 1 to 3 items, with sinusoidal and with learned positions; then the loss for each token
  and exact matches for lists of 1 to 8 items.
- `combinations`: trained on lists of 1 to 3 items in which some kinds never follow some others (each kind occurs
  everywhere), and in which some days never occur in some months (each day and each month occurs). Then exact matches on
  lists with seen and with unseen combinations, by length.

Each training takes about 10 minutes on one core (`combinations` 20), and is an ordinary run: the same command goes on
where it was stopped. In OUTPUT there are then result.json, result.md and result.svg.
"""

import argparse
import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from random import Random

import yaml

from hf_vanilla import Translator
from hf_vanilla.data.spoken import CATEGORIES, split_of
from hf_vanilla.files import write_whole

THEN = " and then "
TRAINED_ITEMS = 3
SHORT = range(1, TRAINED_ITEMS + 1)
LONGEST = 8  # items of a list
KINDS = tuple(CATEGORIES)
UNSEEN_NEIGHBOURS = {(kind, KINDS[(place + 1) % len(KINDS)]) for place, kind in enumerate(KINDS)}
"""Kinds that never follow each other in training: each kind is the first of one such pair and the second of another."""
UNSEEN_DATES = 12  # percent of the pairs of a day and a month


@dataclass(frozen=True)
class Sizes:
    pairs: int = 40_000
    tests: int = 200  # of each length, seen and unseen
    steps: int = 3_000


@dataclass(frozen=True)
class Item:
    kind: str
    spoken: str
    written: str
    is_unseen: bool  # as a combination of a day and a month


@dataclass(frozen=True)
class Row:
    """What was measured on the lists of one length."""

    name: str
    items: int
    pairs: int
    exact_match: float
    loss: float | None  # for each token; None where learned positions end


def item(split: str, random: Random) -> Item:
    while True:
        kind = random.choice(KINDS)
        value = CATEGORIES[kind].draw(random)
        written = CATEGORIES[kind].write(value)
        if split_of(kind, written) == split:
            is_unseen = isinstance(value, date) and is_held_out(value)
            return Item(kind, random.choice(CATEGORIES[kind].say(value)), written, is_unseen)


def is_held_out(day: date) -> bool:
    digest = hashlib.sha256(f"{day.day} {day.month}".encode()).digest()
    return int.from_bytes(digest) % 100 < UNSEEN_DATES


def is_unseen(items: Sequence[Item]) -> bool:
    kinds = {(first.kind, second.kind) for first, second in pairwise(items)}
    return any(each.is_unseen for each in items) or bool(kinds & UNSEEN_NEIGHBOURS)


def lists(
    split: str, lengths: Sequence[int], number: int, seed: int, unseen: bool | None = None
) -> Iterator[tuple[str, str]]:
    """
    Distinct pairs. Values of test items are in no training list.

    Args:
        lengths: How many items lists may have.
        unseen: Whether the lists must have, or must not have, a combination that is held out; None: whatever comes.
    """
    random = Random(f"{split} {seed}")  # noqa: S311
    drawn: set[str] = set()
    while len(drawn) < number:
        items = [item(split, random) for _ in range(random.choice(lengths))]
        spoken = THEN.join(each.spoken for each in items)
        if spoken not in drawn and unseen in (None, is_unseen(items)):
            drawn.add(spoken)
            yield spoken, " ".join(each.written for each in items)


def write_recipe(folder: Path, sizes: Sizes, unseen: bool | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, number in (("train", sizes.pairs), ("validation", min(500, sizes.pairs))):
        pairs = lists(split, SHORT, number, seed=0, unseen=unseen)
        write_whole(folder / f"{split}.tsv", "".join(f"{spoken}\t{written}\n" for spoken, written in pairs))
    files = {split: {"file": f"{split}.tsv", "source": 0, "target": 1} for split in ("train", "validation")}
    step = max(1, sizes.steps // 4)
    sections = {
        "data": files,
        "tokenizer": {"kind": "bpe", "vocab_size": 400},
        "model": {"d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "num_heads": 4, "d_ff": 512},
        "training": {
            "max_tokens": 2048,
            "max_steps": sizes.steps,
            "learning_rate": 2e-3,
            "lr_scheduler_type": "cosine",
            "warmup_steps": min(200, step),
            "eval_steps": step,
            "save_steps": step,
            "seed": 42,
            "metric_for_best_model": "exact_match",
            "metrics": ["exact_match"],
        },
        "generation": {"num_beams": 1, "max_length": 257},
    }
    recipe = folder / "recipe.yaml"
    write_whole(recipe, yaml.safe_dump(sections, sort_keys=False))
    return recipe


def trained(recipe: Path, run: Path, *overrides: str) -> Translator:
    command = [sys.executable, "-m", "hf_vanilla", "train", str(recipe), *overrides, "--output", str(run)]
    if not (run / "report.json").exists() and subprocess.run(command, check=False).returncode:  # noqa: S603
        sys.exit(f"{run}: the training did not end; the same command goes on")
    return Translator.from_pretrained(run)


def measured(translator: Translator, name: str, items: int, pairs: Sequence[tuple[str, str]]) -> Row:
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    found = translator.translate(sources)
    scores = [score for score in translator.score(sources, targets) if not math.isnan(score.log_probability)]
    tokens = sum(len(score.tokens) for score in scores)
    loss = -sum(score.log_probability for score in scores) / tokens if len(scores) == len(pairs) else None
    right = sum(one == target for one, target in zip(found, targets, strict=True))
    return Row(name, items, len(pairs), 100 * right / len(pairs), loss)


def length(output: Path, sizes: Sizes, longest: int = LONGEST) -> list[Row]:
    recipe, rows = write_recipe(output / "data", sizes, unseen=None), []
    for positions in ("sinusoidal", "learned"):
        override = f"model.position_embedding_type={positions}"
        translator = trained(recipe, output / positions, override, "model.max_position_embeddings=512")
        for items in range(1, longest + 1):
            pairs = list(lists("test", [items], sizes.tests, seed=items))
            rows.append(measured(translator, positions, items, pairs))
    return rows


def combinations(output: Path, sizes: Sizes) -> list[Row]:
    recipe, rows = write_recipe(output / "data", sizes, unseen=False), []
    translator = trained(recipe, output / "run")
    for name, unseen in (("seen", False), ("unseen", True)):
        for items in range(1, TRAINED_ITEMS + 2):
            pairs = list(lists("test", [items], sizes.tests, seed=items, unseen=unseen))
            rows.append(measured(translator, f"{name} combinations", items, pairs))
    return rows


def draw(rows: Sequence[Row], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "hf_vanilla"  # the same figure is the same file
    from matplotlib import pyplot

    figure, (losses, matches) = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    for name in dict.fromkeys(row.name for row in rows):
        own = [row for row in rows if row.name == name]
        items = [row.items for row in own]
        losses.plot(items, [math.nan if row.loss is None else row.loss for row in own], marker="o", label=name)
        matches.plot(items, [row.exact_match for row in own], marker="o", label=name)
    for axes, title in ((losses, "loss for each token"), (matches, "exact matches in %")):
        axes.axvline(TRAINED_ITEMS + 0.5, color="grey", linestyle=":")
        axes.set(xlabel=f"items of a list (trained on up to {TRAINED_ITEMS})", title=title)
        axes.set_xticks(range(1, max(row.items for row in rows) + 1))
        axes.legend()
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)


def table(rows: Sequence[Row]) -> str:
    lines = ["| | items | pairs | exact match | loss |", "|---|---|---|---|---|"]
    for row in rows:
        loss = "" if row.loss is None else f"{row.loss:.3f}"
        lines.append(f"| {row.name} | {row.items} | {row.pairs} | {row.exact_match:.1f} % | {loss} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["length", "combinations"])
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=0, help="of a training, in place of 3,000 (combinations: 6,000)")
    parser.add_argument("--pairs", type=int, default=Sizes.pairs)
    parser.add_argument("--tests", type=int, default=Sizes.tests, help="lists of each length")
    given = parser.parse_args()
    usual = Sizes.steps if given.what == "length" else 2 * Sizes.steps
    sizes = Sizes(given.pairs, given.tests, given.steps or usual)
    rows = length(given.output, sizes) if given.what == "length" else combinations(given.output, sizes)
    write_whole(given.output / "result.json", json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    write_whole(given.output / "result.md", table(rows))
    draw(rows, given.output / "result.svg")
    print(table(rows), end="")


if __name__ == "__main__":
    main()
