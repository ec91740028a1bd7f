"""The history of a run to a picture of how it learned."""

from pathlib import Path
from textwrap import fill

import yaml
from transformers import AutoConfig

from ..run_directory import CURVE, RECIPE, read_history, validation_scores


def draw_learning_curve(run: Path) -> Path:
    """
    Loss in training and validation, and under it every score of the validation. Needs the extra `plots`.

    The two losses are of the same unit, nats per target token, but not of the same quantity: what makes training harder
    is off in validation. The legend says what that is in this run.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    history = read_history(run)
    scores = list(dict.fromkeys(name for entry in history for name in validation_scores(entry) if name != "loss"))
    figure, axes = pyplot.subplots(1 + len(scores), sharex=True, figsize=(7, 3 + 1.8 * len(scores)), squeeze=False)
    for key, label in loss_labels(run).items():
        axes[0, 0].plot(*series(history, key), label=fill(label, width=60))
    axes[0, 0].set_ylabel("loss")
    axes[0, 0].legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize="small", frameon=False)  # above the curves
    for axis, name in zip(axes[1:, 0], scores, strict=True):
        axis.plot(*series(history, f"eval_{name}"), marker="o", color="tab:orange")
        axis.set_ylabel(name.replace("_", "\n"))
    axes[-1, 0].set_xlabel("step")
    figure.suptitle(run.name)
    figure.tight_layout()
    picture = run / CURVE
    partial = picture.with_suffix(f".partial{picture.suffix}")
    figure.savefig(partial, dpi=120)
    pyplot.close(figure)
    return partial.replace(picture)


def loss_labels(run: Path) -> dict[str, str]:
    """For each loss in the history its label: "training, with label smoothing 0.1, dropout 0.3" and so on."""
    config = AutoConfig.from_pretrained(run).to_dict()
    recipe = yaml.safe_load((run / RECIPE).read_text(encoding="utf-8"))
    rates = {
        "label smoothing": config["label_smoothing"],
        "dropout": config["dropout"],
        "attention dropout": config["attention_dropout"],
        "activation dropout": config["activation_dropout"],
        "BPE-dropout": (recipe.get("tokenizer") or {}).get("dropout"),
        "R-Drop": (recipe.get("training") or {}).get("r_drop"),
    }
    used = ", ".join(f"{name} {rate:g}" for name, rate in rates.items() if rate)
    if not used:
        return {"loss": "training", "eval_loss": "validation"}
    return {"loss": f"training, with {used}", "eval_loss": "validation, without"}


def series(history: list[dict[str, float]], key: str) -> tuple[list[float], list[float]]:
    found = [(entry["step"], entry[key]) for entry in history if key in entry]
    return [step for step, _ in found], [value for _, value in found]
