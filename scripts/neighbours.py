"""
How good a recipe is among its neighbours: trains it, and copies of it in which one number is another.

    python scripts/neighbours.py recipe.yaml --output runs/neighbours [--only dropout,rate] [SECTION.KEY=VALUE ...]

The neighbours have half and twice the vocabulary, 0.1 more and less dropout, a smaller and a larger model, half and
twice the learning rate, and half and twice the tokens in a batch. Each is an ordinary run of `hf-vanilla train`, in a
folder with its name: the same command goes on where it was stopped, and trains nothing again that is finished. In the
end, and after each training, a table says what share of the best score the recipe itself has.
"""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from hf_vanilla import VanillaConfig
from hf_vanilla.run_directory import HISTORY, REPORT
from hf_vanilla.training.recipe import Recipe, load_recipe

PROPOSAL = "proposal"


def neighbours(recipe: Recipe) -> Iterator[tuple[str, dict[str, float]]]:
    """The name of each, and the keys in which it differs."""
    section, model = recipe.tokenizer, VanillaConfig(**recipe.model)
    yield PROPOSAL, {}
    if section.kind in ("bpe", "word"):
        for factor in (0.5, 2.0):
            yield f"vocab_size x{factor:g}", {"tokenizer.vocab_size": round(section.vocab_size * factor)}
    for change in (-0.1, 0.1):
        if 0 <= (dropout := round(model.dropout + change, 3)) < 1:
            yield f"dropout {change:+g}", {"model.dropout": dropout}
    for factor in (0.5, 2.0):
        widths = {"model.d_model": model.d_model, "model.d_ff": model.d_ff}
        yield f"width x{factor:g}", {key: round(width * factor) for key, width in widths.items()}
    for change in (-2, 2):
        depths = {"model.encoder_layers": model.encoder_layers, "model.decoder_layers": model.decoder_layers}
        if min(depths.values()) + change > 0:
            yield f"depth {change:+}", {key: depth + change for key, depth in depths.items()}
    for factor in (0.5, 2.0):
        rate = recipe.arguments["learning_rate"] * factor
        yield f"rate x{factor:g}", {"training.learning_rate": float(f"{rate:.3g}")}
    for factor in (0.5, 2.0):
        yield f"tokens x{factor:g}", with_other_batches(recipe, factor)


def with_other_batches(recipe: Recipe, factor: float) -> dict[str, float]:
    """As many epochs, so that other batches are compared and not longer trainings."""
    arguments = recipe.arguments
    longest = max(recipe.data.max_source_length, recipe.data.max_target_length)
    changed: dict[str, float] = {"training.max_tokens": max(longest, round(recipe.training.max_tokens * factor))}
    for key in ("max_steps", "warmup_steps", "eval_steps", "save_steps"):
        if arguments.get(key, 0) >= 1:
            changed[f"training.{key}"] = max(1, round(arguments[key] / factor))
    return changed


def folder_name(name: str) -> str:
    return name.replace(" ", "_")


def best_validation(run: Path, recipe: Recipe) -> float | None:
    """The best score in the history of a run, if it is finished."""
    history = run / HISTORY
    if not history.exists() or not (run / REPORT).exists():
        return None
    key = f"eval_{recipe.metric}"
    scores = [entry[key] for entry in json.loads(history.read_text(encoding="utf-8")) if key in entry]
    return (max if recipe.greater_is_better else min)(scores, default=math.nan)


def share_of_best(scores: dict[str, float], greater_is_better: bool) -> float:
    own, others = scores[PROPOSAL], scores.values()
    least, most = (own, max(others)) if greater_is_better else (min(others), own)
    return least / most if most else 1.0


def table(runs: dict[str, Path], recipe: Recipe) -> str:
    scores = {name: score for name, run in runs.items() if (score := best_validation(run, recipe)) is not None}
    lines = [f"{len(scores)} of {len(runs)}: best {recipe.metric} in validation"]
    lines += [f"{name:16} {score:.2f}" for name, score in scores.items()]
    if PROPOSAL in scores:
        lines.append(f"{PROPOSAL} has {share_of_best(scores, recipe.greater_is_better):.1%} of the best score")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="SECTION.KEY=VALUE", help="for all of them")
    parser.add_argument("--output", type=Path, required=True, help="a folder for the runs")
    parser.add_argument(
        "--only", default="", help="beginnings of names, separated by commas; the proposal is always in"
    )
    options = parser.parse_intermixed_args()
    recipe = load_recipe(options.recipe, options.overrides)
    only = tuple(filter(None, options.only.split(",")))
    chosen = {name: keys for name, keys in neighbours(recipe) if not only or name.startswith((PROPOSAL, *only))}
    runs = {name: options.output / folder_name(name) for name in chosen}
    failed = []
    for name, keys in chosen.items():
        if best_validation(runs[name], recipe) is None:
            overrides = [*options.overrides, *(f"{key}={value}" for key, value in keys.items())]
            command = [sys.executable, "-m", "hf_vanilla", "train", str(options.recipe), *overrides]
            print(f"{name}: {' '.join(overrides)}", file=sys.stderr, flush=True)
            if subprocess.run([*command, "--output", str(runs[name])], check=False).returncode:  # noqa: S603
                failed.append(name)
            print(table(runs, recipe), file=sys.stderr, flush=True)
    print(table(runs, recipe))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; the same command tries them again")


if __name__ == "__main__":
    main()
