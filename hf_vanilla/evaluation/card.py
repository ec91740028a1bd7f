"""A run directory to its model card, from what the training left there."""

import json
import math
import platform
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from safetensors import safe_open

from ..files import write_whole
from ..run_directory import CARD, RECIPE, REPORT, WEIGHTS, read_history, validation_scores

PACKAGES = ("hf_vanilla", "transformers", "torch", "datasets", "tokenizers", "sacrebleu")
Sample = tuple[Sequence[str], str, str]
"""An input in its parts, the model's output, the reference."""


def write_card(run: Path, samples: Sequence[Sample] = ()) -> None:
    """Write `README.md` into the run directory, which is what the Hub shows."""
    recipe = yaml.safe_load((run / RECIPE).read_text(encoding="utf-8"))
    report = json.loads((run / REPORT).read_text(encoding="utf-8"))
    languages = [recipe["data"].get(f"{side}_language") for side in ("source", "target")]
    with as_file(files("hf_vanilla.evaluation") / "model_card.md") as template:
        card = ModelCard.from_template(
            card_data(run.name, languages, report),
            template_path=str(template),
            name=run.name,
            parameters=f"{parameters_of(run):,}",
            languages=languages if all(languages) else None,
            parts=len(samples[0][0]) if samples else 1,
            first_source=fenced(json.dumps(samples[0][0] if samples else ["..."])),
            results=[(split, metric, shown(value)) for split in report for metric, value in report[split].items()],
            samples=[[cell(text) for text in (" | ".join(parts), *texts)] for parts, *texts in samples],
            history=validations(read_history(run)),
            recipe=fenced((run / RECIPE).read_text(encoding="utf-8").strip()),
            versions=f"Versions: python {platform.python_version()}, "
            + ", ".join(f"{package} {metadata.version(package)}" for package in PACKAGES),
        )
    write_whole(run / CARD, str(card))


def card_data(name: str, languages: Sequence[str | None], report: Mapping[str, Mapping[str, Any]]) -> ModelCardData:
    """The front matter: what the Hub searches by."""
    results = [
        EvalResult(
            task_type="translation",
            dataset_type=name,
            dataset_name=name,
            dataset_split=split,
            metric_type=metric,
            metric_value=value,
        )
        for split, scores in report.items()
        for metric, value in scores.items()
        if isinstance(value, float) and not metric.startswith("bleu_")
    ]
    return ModelCardData(
        language=list(dict.fromkeys(language for language in languages if language)) or None,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["hf_vanilla", "attention-is-all-you-need"],
        model_name=name,
        eval_results=results,
    )


def parameters_of(run: Path) -> int:
    with safe_open(run / WEIGHTS, framework="pt") as weights:
        names = list(weights.keys())
        return sum(math.prod(weights.get_slice(name).get_shape()) for name in names)


def validations(history: Sequence[Mapping[str, Any]]) -> list[tuple[int, str, str]]:
    """For each validation its step, the loss of the training until then, and its scores."""
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
    """Text as text in a cell of a Markdown table, whatever it is."""
    return " ".join(text.translate(ESCAPED).split()) or " "


def fenced(text: str) -> str:
    """Text that cannot end the code block it is put into."""
    return text.replace("```", "` ` `")
