"""What takes several stages: train a recipe and measure it, measure a run again, average its checkpoints."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
from accelerate import PartialState
from accelerate.utils import gather_object
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from .data.corpus import Pair, read_pairs
from .data.errors import InvalidDataError
from .evaluation.card import write_card
from .evaluation.curve import draw_learning_curve
from .evaluation.measurements import Measurement, Sample, add_to_report, weights_of
from .evaluation.metrics import References, report
from .files import write_whole
from .inference.alignment_choice import choose_alignment
from .inference.translator import Translator
from .messages import say
from .run_directory import ALIGNMENT, GENERATION_CONFIG, RECIPE, require_run
from .training.checkpoints import average_checkpoints
from .training.preparation import read_prepared
from .training.recipe import Recipe, RecipeError, load_recipe
from .training.run import train
from .training.saving import only_writer

Scores = dict[str, float | str]

SAMPLES = 3  # in the report and in the card
ALIGNED_PAIRS = 200  # of the validation data, by which the attention map of alignments is chosen
COUNTED_PAIRS = 20_000  # of the training data, for the statistics that it is compared with


def check_scores(recipe: Recipe) -> None:
    """Score a line, so that a metric that does not exist is found before the training and not after it."""
    try:
        scores = scores_of(recipe, ["a line"], ["a line"])
    except ValueError as error:
        raise RecipeError(f"training.metrics: {error}") from None
    known = ["loss", *(name for name, value in scores.items() if isinstance(value, float))]
    if recipe.metric not in known:
        raise RecipeError(f"training.metric_for_best_model: {recipe.metric!r} is none of {', '.join(known)}")


def train_and_measure(recipe: Recipe, run: Path) -> Scores:
    """Train into the directory `run`, or go on with the training there; then measure it and write its card."""
    check_scores(recipe)
    train(recipe, run, greedy_translations, lambda found, references: scores_of(recipe, found, references))
    if not PartialState().is_main_process:
        return {}
    with only_writer(run):
        update_card(run)  # a card from an earlier training has the scores of other weights
        update_alignment(run)
        split = "test" if recipe.data.test else "validation"
        pairs, translations = translate_split(run, recipe, split)
        scores = score(recipe, translations, pairs)
        samples = [Sample(p.source, found, p.target) for p, found in zip(pairs, translations, strict=True)]
        add_to_report(run, split, Measurement(scores, weights_of(run), samples[:SAMPLES]))
        update_curve(run)
        update_card(run)
    return scores


def update_curve(run: Path) -> None:
    """Draw the learning curve. A run is finished also where that fails."""
    try:
        draw_learning_curve(run)
    except Exception as error:
        say(f"the learning curve could not be drawn (pip install 'hf_vanilla[plots]'?): {error}")


def update_alignment(run: Path) -> None:
    """Choose the attention map that is an alignment by the data of the run, which is finished also where that fails."""
    try:
        prepared = read_prepared(run)
        sample, training = spread(prepared.validation, ALIGNED_PAIRS), spread(prepared.train, COUNTED_PAIRS)
        choice = choose_alignment(
            Translator.from_pretrained(run).model,
            prepared.tokenizer,
            list(zip(sample["source"], sample["target"], strict=True)),
            list(zip(training["source"], training["target"], strict=True)),
            source_ids=sample["source_ids"],
        )
        config = json.loads((run / GENERATION_CONFIG).read_text(encoding="utf-8")) | {ALIGNMENT: choice.as_dict()}
        write_whole(run / GENERATION_CONFIG, json.dumps(config, indent=2, sort_keys=True) + "\n")
    except Exception as error:
        say(f"no attention map could be chosen for alignments: {error}")


def spread(pairs: datasets.Dataset, number: int) -> dict[str, list[Any]]:
    """The columns of at most `number` pairs, evenly from all of them."""
    rows: dict[str, list[Any]] = pairs[:: math.ceil(len(pairs) / number)]
    return rows


def update_card(run: Path) -> None:
    """Write the model card. A run is finished also where that fails."""
    try:
        write_card(run)
    except Exception as error:
        say(f"the model card could not be written: {error}")


def measure(run: Path, split: str = "test") -> Scores:
    """The scores of a run on a split of its own recipe."""
    recipe = load_recipe(run / RECIPE)
    pairs, translations = translate_split(run, recipe, split)
    return score(recipe, translations, pairs)


def translate_split(run: Path, recipe: Recipe, split: str) -> tuple[list[Pair], list[str]]:
    corpora = {"test": recipe.data.test, "validation": recipe.data.validation}[split]
    if not corpora:
        raise InvalidDataError(f"{run / RECIPE}: has no data.{split}; measure another split")
    pairs = list(read_pairs(corpora))
    translator, prefixes = Translator.from_pretrained(run), [pair.prefix for pair in pairs]
    return pairs, translate_each(translator, [pair.source for pair in pairs], prefixes)


def score(recipe: Recipe, translations: Sequence[str], pairs: Sequence[Pair]) -> Scores:
    """Compare with the target of each pair; or, if the recipe says so, count each source once, with all its targets."""
    if not recipe.training.group_references:
        return scores_of(recipe, translations, [pair.target for pair in pairs])
    references: dict[tuple[str, ...], list[str]] = {}
    for pair in pairs:
        references.setdefault(pair.source, []).append(pair.target)
    found = {pair.source: translation for pair, translation in zip(pairs, translations, strict=True)}
    return scores_of(recipe, [found[source] for source in references], list(references.values()))


def scores_of(recipe: Recipe, translations: Sequence[str], references: References) -> Scores:
    return report(translations, references, recipe.training.metrics, tokenize=recipe.training.bleu_tokenize)


def average(run: Path, number: int, which: str) -> list[Path]:
    """Make the mean of the `last` or `best` checkpoints the weights of the run, and say in its card what is known."""
    require_run(run)
    recipe = load_recipe(run / RECIPE)
    with only_writer(run):
        chosen = average_checkpoints(run, number, which, recipe.metric, recipe.greater_is_better)
        update_alignment(run)
        update_card(run)
    return chosen


def greedy_translations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    sources: Sequence[Sequence[str]],
    prefixes: Sequence[str],
) -> list[str]:
    """Quick translations for validations during training. Every process makes its share of them."""
    state = PartialState()
    options: dict[str, Any] = {"num_beams": 1, "length_penalty_type": None}
    translator = Translator(model, tokenizer)
    if isinstance(model, FSDPModule):  # each call gathers weights from all processes, so all must make the same calls
        return translate_each(translator, sources, prefixes, **options)
    mine = slice(state.process_index, None, state.num_processes)
    shares = gather_object([translate_each(translator, sources[mine], prefixes[mine], **options)])
    return [shares[index % state.num_processes][index // state.num_processes] for index in range(len(sources))]


def translate_each(
    translator: Translator, sources: Sequence[Sequence[str]], prefixes: Sequence[str], **options: Any
) -> list[str]:
    """Translations of sources that may have different prefixes, in their order: all of one prefix together."""
    translations = [""] * len(sources)
    for prefix in dict.fromkeys(prefixes):
        places = [place for place, other in enumerate(prefixes) if other == prefix]
        found = translator.translate([sources[place] for place in places], prefix=prefix, **options)
        for place, translation in zip(places, found, strict=True):
            translations[place] = translation
    return translations
