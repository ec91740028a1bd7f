"""The model card of a run directory, made of the files that are in it."""

import json
import math
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from safetensors import safe_open

from ..files import write_whole
from ..hub_name import hub_name
from ..run_directory import (
    ALIGNMENT,
    ATTENTION,
    CARD,
    CURVE,
    GENERATION_CONFIG,
    RECIPE,
    TOKENIZER_CONFIG,
    WEIGHTS,
    read_history,
    read_origin,
    validation_scores,
)
from .measurements import Measurement, Sample, read_report, weights_of

PACKAGES = ("hf_vanilla", "transformers", "torch", "datasets", "tokenizers", "sacrebleu")


@dataclass(frozen=True)
class Published:
    """
    Where a card is shown on the Hub, which its code and its links then name.

    Args:
        name: Of the repository, with its owner.
        revision: A tag, so that the code of the card loads what the card describes, and asks and warns of nothing.
        space: The Space with a page on which the model can be tried.
    """

    name: str
    revision: str
    space: str | None = None


def write_card(run: Path) -> None:
    """Write `README.md` into the run directory, which is what the Hub shows. Scores of other weights are left out."""
    write_whole(run / CARD, str(card_of(run)))


def card_of(run: Path, published: Published | None = None) -> ModelCard:
    """The card of a run as it is on this machine, or as it is published."""
    run = run.resolve()  # "." has no name
    recipe = yaml.safe_load((run / RECIPE).read_text(encoding="utf-8"))
    report, weights, origin = read_report(run), weights_of(run), read_origin(run)
    measured = {name: entry for name, entry in report.items() if entry.weights == weights}
    samples = [sample for entry in measured.values() for sample in entry.samples]
    example = example_of(report)
    languages = [recipe["data"].get(f"{side}_language") for side in ("source", "target")]
    name = published.name if published else run.name
    with as_file(files("hf_vanilla.evaluation") / "model_card.md") as template:
        return ModelCard.from_template(
            card_data(run.name, recipe["data"], measured, base_model_of(origin)),
            template_path=str(template),
            title=run.name,
            name=name,
            pinned=f', revision="{published.revision}"' if published else "",
            space=published.space if published else None,
            pictures=pictures_of(run),
            parameters=f"{parameters_of(run):,}",
            languages=languages if all(languages) else None,
            origin=sentence_of(origin),
            is_plain=len(example) == 1 and reads_plain_texts(run),
            example=fenced(json.dumps(example, ensure_ascii=False)),
            results=[(name, metric, score) for name in measured for metric, score in scores_of(measured[name])],
            weights=weights,
            evaluate=f"hf-vanilla evaluate {shlex.quote(run.name)}",
            samples=[[cell(text) for text in texts_of(sample)] for sample in samples],
            alignment=alignment_of(run),
            history=validations(read_history(run)),
            recipe=fenced(without_places((run / RECIPE).read_text(encoding="utf-8")).strip()),
            versions=f"Versions: python {platform.python_version()}, "
            + ", ".join(f"{package} {metadata.version(package)}" for package in PACKAGES),
        )


def pictures_of(run: Path) -> dict[str, str]:
    """The files of the pictures that are there, and what each shows: the learning curve, and one of attention."""
    shown = {"Learning curve": (CURVE,), "Attention": ATTENTION}
    found = {title: next((name for name in names if (run / name).is_file()), None) for title, names in shown.items()}
    return {title: name for title, name in found.items() if name}


def example_of(report: Mapping[str, Measurement]) -> list[str]:
    """A source for the card's code, in as many parts as the model takes."""
    return next((list(entry.samples[0].source) for entry in report.values() if entry.samples), ["..."])


def reads_plain_texts(run: Path) -> bool:
    """Whether a tokenizer alone can read the sources. It cannot put columns, symbols and prefixes together."""
    file = run / TOKENIZER_CONFIG
    settings = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    columns = settings.get("columns") or {}
    separators = [*columns.get("source", [None]), columns.get("target")]
    return len(separators) == 2 and not any(separators) and not any(settings.get("prefixes", []))


def scores_of(measurement: Measurement) -> list[tuple[str, str]]:
    """Each score and, where it is known, half the width of its confidence interval."""
    intervals = {name: f" ± {found.ci:.2f}" for name, found in measurement.confidence.items()}
    return [(name, shown(score) + intervals.get(name, "")) for name, score in measurement.scores.items()]


def texts_of(sample: Sample) -> tuple[str, str, str]:
    return " | ".join(sample.source), sample.output, sample.reference


def base_model_of(origin: Mapping[str, Any]) -> str | None:
    """The model on the Hub whose weights the training began with, if any."""
    if not origin or not origin["is_on_hub"] or "weights" not in origin["checksums"]:
        return None
    return hub_name(origin["name"]).repository


def sentence_of(origin: Mapping[str, Any]) -> str:
    """How the training began. A model of this machine is known by its name and its weights, not by its path."""
    if not origin:
        return "trained from scratch by hf_vanilla"
    name = cell(origin["name"])
    named = f"[{name}]({hub_name(origin['name']).url})" if origin["is_on_hub"] else f"**{name}**"
    if "weights" not in origin["checksums"]:
        return f"trained from scratch by hf_vanilla with the tokenizer of {named}"
    weights = origin["checksums"]["weights"]
    return f"trained further by hf_vanilla from the weights of {named} (SHA-256 of its `{WEIGHTS}`: `{weights}`)"


def without_places(recipe: str) -> str:
    """A recipe with only the last name of each path from the root or from a home: these are not published."""

    def shortened(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shortened(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [shortened(entry) for entry in value]
        parts = Path(value).parts if isinstance(value, str) else ()
        return parts[-1] if len(parts) > 2 and parts[0][0] in "/~" else value

    keys = yaml.safe_load(recipe)
    public = shortened(keys)
    return recipe if public == keys else str(yaml.safe_dump(public, sort_keys=False, allow_unicode=True))


def card_data(
    name: str, data: Mapping[str, Any], measured: Mapping[str, Measurement], base_model: str | None
) -> ModelCardData:
    """The front matter, by which the Hub searches. `data` is that section of the recipe."""
    languages = [data.get(f"{side}_language") for side in ("source", "target")]
    results = [
        EvalResult(
            task_type="translation",
            dataset_type=name,
            dataset_name=name,
            dataset_split=split,
            metric_type=metric,
            metric_value=score,
            metric_args=details_of(measurement, metric),
        )
        for split, measurement in measured.items()
        for metric, score in measurement.scores.items()
        if isinstance(score, float) and not metric.startswith("bleu_")
    ]
    return ModelCardData(
        language=list(dict.fromkeys(language for language in languages if language)) or None,
        license=data.get("license"),
        datasets=datasets_of(data) or None,
        library_name="transformers",
        base_model=base_model,
        pipeline_tag="translation",
        tags=["hf_vanilla", "attention-is-all-you-need"],
        model_name=name,
        eval_results=results,
    )


def details_of(measurement: Measurement, metric: str) -> dict[str, Any] | None:
    """How a score was computed, in sacrebleu's words, and the ends of its 95 % confidence interval."""
    found: dict[str, Any] = {}
    signature = measurement.scores.get(f"{metric}_signature")
    if signature is not None:
        found["signature"] = signature
    if metric in measurement.confidence:
        around = measurement.confidence[metric]
        found["confidence_interval_95"] = [round(around.mean + side * around.ci, 4) for side in (-1, 1)]
    return found or None


def datasets_of(data: Mapping[str, Any]) -> list[str]:
    """The datasets of the Hub among the corpora of a recipe."""
    splits = [data.get(split) for split in ("train", "validation", "test")]
    corpora = [corpus for split in splits for corpus in (split if isinstance(split, list) else [split])]
    names = (corpus.get("dataset") for corpus in corpora if isinstance(corpus, dict))
    return list(dict.fromkeys(name for name in names if isinstance(name, str) and not Path(name).exists()))


def alignment_of(run: Path) -> str | None:
    """Which attention map is read as an alignment, if one was chosen."""
    file = run / GENERATION_CONFIG
    chosen = json.loads(file.read_text(encoding="utf-8")).get(ALIGNMENT) if file.exists() else None
    if chosen is None:
        return None
    heads = "mean of its heads" if chosen["head"] is None else f"head {chosen['head'] + 1}"
    position = {"output": "predicts", "input": "reads"}[chosen["row"]]
    return (
        f"of source {chosen['source_unit']}s and target {chosen['target_unit']}s are read from the attention of decoder"
        f" layer {chosen['layer'] + 1} ({heads}) at the position that {position} the target token. Of all the maps"
        f" this one agreed best with a statistical aligner, on {chosen['pairs']} validation pairs: an alignment error"
        f" rate of {100 * chosen['error']:.1f} % if the statistical aligner were right"
    )


def parameters_of(run: Path) -> int:
    with safe_open(run / WEIGHTS, framework="pt") as weights:
        names = list(weights.keys())
        return sum(math.prod(weights.get_slice(name).get_shape()) for name in names)


def validations(history: Sequence[Mapping[str, Any]]) -> list[tuple[int, str, str]]:
    """For each validation its step, the last training loss before it, and its scores."""
    rows, loss = [], ""
    for entry in history:
        loss = shown(entry["loss"]) if "loss" in entry else loss
        if scores := validation_scores(entry):
            rows.append((entry["step"], loss, ", ".join(f"{name} {shown(score)}" for name, score in scores.items())))
    return rows


def shown(value: float | str) -> str:
    return f"{value:.2f}" if isinstance(value, float) else f"`{value}`"


ESCAPED = {
    ord(character): f"&#{ord(character)};" if character in "<>&|" else f"\\{character}"
    for character in "\\`*_{}[]<>()#+-.!|&~"
}


def cell(text: str) -> str:
    """Text for a cell of a Markdown table, escaped so that nothing in it is markup."""
    return " ".join(text.translate(ESCAPED).split()) or " "


def fenced(text: str) -> str:
    """Text for a code block, which it cannot end."""
    return text.replace("```", "` ` `")
