"""
A run and test sets to outcomes: read the recipe, translate, compare with the references.

It is above training, inference and evaluation because it takes all three.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .data.corpus import Corpus, Pair, read_pairs
from .data.errors import InvalidDataError
from .evaluation.examples import Examples, Files, examples_of, read_examples, read_translations
from .evaluation.measurements import part_of
from .evaluation.metrics import Metric, Option, metrics_with
from .evaluation.outcome import Outcome, System, outcome_of
from .inference.translator import Translator, translate_each
from .run_directory import RECIPE
from .training.recipe import Recipe, RecipeError, load_recipe

Row = tuple[str, tuple[str, ...]]
"""What is translated: a prefix and the parts of a source."""

EVALUATION_KEYS = (
    *("data.", "generation."),
    *("training.metrics", "training.bleu_tokenize", "training.group_references"),
)
"""Beginnings of the keys of a recipe that an evaluation depends on."""


def recipe_with(run: Path, overrides: Sequence[str]) -> Recipe:
    """The recipe of a run with overrides, of keys that an evaluation depends on."""
    for override in overrides:
        if not override.startswith(EVALUATION_KEYS):
            raise RecipeError(
                f"{override!r}: an evaluation does not depend on this key; it can change {', '.join(EVALUATION_KEYS)}"
            )
    if not (run / RECIPE).is_file():
        raise RecipeError(
            f"{run} has no {RECIPE}, which says how to measure: translate with `hf-vanilla translate {run}`, and "
            "measure that with `hf-vanilla evaluate --hypothesis TRANSLATIONS --reference REFERENCES`"
        )
    return load_recipe(run / RECIPE, overrides)


def generation_of(recipe: Recipe, overrides: Sequence[str]) -> dict[str, Any]:
    """The generation settings that were overridden. All others are in the run's generation config."""
    names = (override.partition("=")[0].split(".") for override in overrides)
    named = {key for section, key, *_ in names if section == "generation"}
    return {key: value for key, value in recipe.generation.items() if key in named}


def metrics_of(recipe: Recipe, **options: Option) -> list[Metric]:
    try:
        return metrics_with({"tokenize": recipe.training.bleu_tokenize, **options}, recipe.training.metrics)
    except ValueError as error:
        raise RecipeError(f"training.metrics: {error}") from None


def measured_split(
    run: Path,
    recipe: Recipe,
    split: str,
    metrics: Sequence[Metric],
    generation: Mapping[str, Any] | None = None,
    against: Sequence[Path] = (),
) -> list[Outcome]:
    """The whole split comes first, then, if it has several corpora, each of them."""
    corpora = {"test": recipe.data.test, "validation": recipe.data.validation}[split]
    if not corpora:
        raise InvalidDataError(f"{run / RECIPE}: has no data.{split}; measure another split")
    pairs: list[Pair] = []
    examples: list[Examples] = []
    for name, corpus in zip(names_of(corpora), corpora, strict=True):
        found = list(read_pairs([corpus]))
        if found:
            examples.append(examples_of(part_of(split, name), found, len(pairs), recipe.training.group_references))
        pairs += found
    if not pairs:
        raise InvalidDataError(f"{run / RECIPE}: data.{split} has no pairs to measure with")
    whole = examples_of(split, pairs, grouped=recipe.training.group_references)
    examples = [whole, *examples] if len(corpora) > 1 else [whole]
    rows = [(pair.prefix, pair.source) for pair in pairs]
    return measured(run, rows, examples, metrics, generation or {}, against, {f"data.{split}": len(pairs)})


def measured_files(
    run: Path,
    recipe: Recipe,
    sets: Sequence[Files],
    metrics: Sequence[Metric],
    generation: Mapping[str, Any],
    against: Sequence[Path] = (),
    prefix: str = "",
    name: str = "",
) -> list[Outcome]:
    """
    Measure a run on files.

    Args:
        prefix: What the run reads before each source.
        name: What to call the run, if not as its directory.
    """
    examples, _ = read_examples(sets, recipe.data.train[0].parts)
    rows = [(prefix, tuple(source)) for each in examples for source in each.sources or ()]
    sizes = {each.name: len(each.rows) for each in examples}
    return measured(run, rows, examples, metrics, generation, against, sizes, name)


def measured(
    run: Path,
    rows: Sequence[Row],
    examples: Sequence[Examples],
    metrics: Sequence[Metric],
    generation: Mapping[str, Any],
    against: Sequence[Path],
    sizes: Mapping[str, int],
    name: str = "",
) -> list[Outcome]:
    """
    Translate all rows and measure each test set.

    Args:
        sizes: How many lines each file of `against` must have, by what it is the translation of.
    """
    baseline = baseline_of(against, rows, sizes)  # first: what is wrong with it is found before the work
    name = " ".join([name or str(run), *(f"{key}={value}" for key, value in generation.items())])
    system = System(name, translations_of(run, rows, generation))
    return [outcome_of(each, metrics, system, baseline) for each in examples]


def baseline_of(against: Sequence[Path], rows: Sequence[Row], sizes: Mapping[str, int]) -> System | None:
    """The system to compare with: a run, which translates the rows too, or files with its translations."""
    if not against:
        return None
    if len(against) == 1 and against[0].is_dir():
        return System(str(against[0]), translations_of(against[0], rows, {}))
    return System(", ".join(map(str, against)), read_translations(against, sizes))


def translations_of(run: Path, rows: Sequence[Row], generation: Mapping[str, Any]) -> list[str]:
    """A translation of each row; what occurs several times is translated once."""
    unique = list(dict.fromkeys(rows))
    prefixes, sources = zip(*unique, strict=True)
    found = translate_each(Translator.from_pretrained(run), sources, prefixes, **generation)
    translations = dict(zip(unique, found, strict=True))
    return [translations[row] for row in rows]


def names_of(corpora: Sequence[Corpus]) -> list[str]:
    """A name for each corpus: of its file or dataset, and its position where others have the same."""
    names = [corpus.title for corpus in corpora]
    return [f"{name} ({position})" if names.count(name) > 1 else name for position, name in enumerate(names, start=1)]
