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

from .evaluation.card import write_card
from .evaluation.curve import draw_learning_curve
from .evaluation.examples import Files
from .evaluation.measurements import add_to_report, measurement_of, weights_of
from .evaluation.metrics import Scores, report
from .evaluation.outcome import Outcome
from .files import write_whole
from .hub_name import folder_of
from .inference.alignment_choice import choose_alignment
from .inference.translator import Translator, translate_each
from .inspection.card_picture import draw_attention
from .measuring import generation_of, measured_files, measured_split, metrics_of, recipe_with
from .messages import say
from .run_directory import ALIGNMENT, GENERATION_CONFIG, RECIPE, require_run
from .training.checkpoints import average_checkpoints
from .training.preparation import read_prepared
from .training.recipe import Recipe, RecipeError, load_recipe
from .training.run import train
from .training.saving import RunInUseError, only_writer

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


def scores_of(recipe: Recipe, translations: Sequence[str], references: Sequence[str]) -> Scores:
    """Scores without confidence intervals, for validations during training."""
    return report(translations, references, recipe.training.metrics, tokenize=recipe.training.bleu_tokenize)


def train_and_measure(recipe: Recipe, run: Path) -> Scores:
    """Train into the directory `run`, or go on with the training there; then measure it and write its card."""
    check_scores(recipe)
    train(recipe, run, greedy_translations, lambda found, references: scores_of(recipe, found, references))
    if not PartialState().is_main_process:
        return {}
    split = "test" if recipe.data.test else "validation"
    with only_writer(run):
        update_card(run)  # a card from an earlier training has the scores of other weights
        update_alignment(run)
        update_attention(run)
        weights = weights_of(run)
        outcomes = measured_split(run, recipe, split, metrics_of(recipe))
        write_report(run, outcomes, weights)
        update_curve(run)
        update_card(run)
    return outcomes[0].scores


def update_curve(run: Path) -> None:
    """Draw the learning curve. A run is finished also where that fails."""
    try:
        draw_learning_curve(run)
    except Exception as error:
        say(f"the learning curve could not be drawn (pip install 'hf_vanilla[plots]'?): {error}")


def update_attention(run: Path) -> None:
    """Draw the attention to a validation source, with the chosen map. A run is finished also where that fails."""
    try:
        if draw_attention(run) is None:
            say("there is no attention picture: no validation source has 4 to 20 tokens and a translation to draw")
    except Exception as error:
        say(f"the attention picture could not be drawn (pip install 'hf_vanilla[plots]'?): {error}")


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


def measure(
    run: Path, split: str = "test", overrides: Sequence[str] = (), against: Sequence[Path] = (), lowercase: bool = False
) -> list[Outcome]:
    """
    Measure a run on a split of its recipe: on all of it, and on each corpus if there are several.

    Its report and card are updated, unless something was asked for that its recipe does not say.

    Args:
        overrides: Of the recipe, `section.key=value`. Those of `generation` hold for this run only.
        against: Another run, or a file with another system's translation of each pair.
        lowercase: Whether BLEU and chrF ignore case.
    """
    recipe, weights = recipe_with(run, overrides), weights_of(run)  # these weights, whatever is saved meanwhile
    metrics = metrics_of(recipe, lowercase=lowercase)
    outcomes = measured_split(run, recipe, split, metrics, generation_of(recipe, overrides), against)
    if not overrides and not lowercase:
        record(run, outcomes, weights)
    return outcomes


def measure_files(
    run: str | Path,
    sets: Sequence[Files],
    overrides: Sequence[str] = (),
    against: Sequence[Path] = (),
    lowercase: bool = False,
    prefix: str = "",
) -> list[Outcome]:
    """
    Measure a run on files, with the metrics of its recipe. The other arguments are those of `measure`.

    Args:
        run: Its directory, or its name on the Hub.
        prefix: What the run reads before each source.
    """
    folder = folder_of(run)
    recipe = recipe_with(folder, overrides)
    metrics = metrics_of(recipe, lowercase=lowercase)
    return measured_files(folder, recipe, sets, metrics, generation_of(recipe, overrides), against, prefix, str(run))


def record(run: Path, outcomes: Sequence[Outcome], weights: str) -> None:
    """Have report and card of a run say what was measured. The scores are good also where that fails."""
    try:
        with only_writer(run):
            write_report(run, outcomes, weights)
            update_card(run)
    except (OSError, RunInUseError) as error:
        say(f"{run}: report.json and the model card do not have these scores: {error}")
    else:
        say(f"{run}: report.json and the model card have these scores")


def write_report(run: Path, outcomes: Sequence[Outcome], weights: str) -> None:
    """Write what was measured of a split, which comes first, and of its corpora. Samples are of the split."""
    for outcome, samples in zip(outcomes, (SAMPLES, *[0] * len(outcomes)), strict=False):
        add_to_report(run, outcome.examples.name, measurement_of(outcome, weights, samples))


def average(run: Path, number: int, which: str) -> list[Path]:
    """Make the mean of the `last` or `best` checkpoints the weights of the run, and say in its card what is known."""
    require_run(run)
    recipe = load_recipe(run / RECIPE)
    with only_writer(run):
        chosen = average_checkpoints(run, number, which, recipe.metric, recipe.greater_is_better)
        update_alignment(run)
        update_attention(run)
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
