"""The history of a run to a picture of how it learned."""

from pathlib import Path

from ..run_directory import CURVE, read_history, validation_scores


def draw_learning_curve(run: Path) -> Path:
    """Loss in training and validation, and under it every score of the validation. Needs the extra `plots`."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    history = read_history(run)
    scores = list(dict.fromkeys(name for entry in history for name in validation_scores(entry) if name != "loss"))
    figure, axes = pyplot.subplots(1 + len(scores), sharex=True, figsize=(7, 3 + 1.8 * len(scores)), squeeze=False)
    for key, label in (("loss", "training"), ("eval_loss", "validation")):
        axes[0, 0].plot(*series(history, key), label=label)
    axes[0, 0].set_ylabel("loss")
    axes[0, 0].legend()
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


def series(history: list[dict[str, float]], key: str) -> tuple[list[float], list[float]]:
    found = [(entry["step"], entry[key]) for entry in history if key in entry]
    return [step for step, _ in found], [value for _, value in found]
