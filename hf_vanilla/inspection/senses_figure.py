"""The senses of a word by layer as a picture, with both controls. Needs the extra `plots`."""

from pathlib import Path

from .figure import save_figure
from .senses import SensesReport


def draw_senses(report: SensesReport, file: Path) -> Path:
    """Write the picture (.svg, .png or .pdf)."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    layers = list(range(len(report.trained)))
    figure, axis = pyplot.subplots(figsize=(5.5, 4), layout="constrained")
    axis.fill_between(
        layers,
        report.shuffled.min(0),
        report.shuffled.max(0),
        color="#d3d7dc",
        label=f"labels shuffled {len(report.shuffled)} times",
    )
    axis.plot(layers, report.untrained, marker="x", ls="--", color="#9a5b00", label="encoder never trained")
    axis.plot(layers, report.trained, marker="o", color="#1f5fa8", label="trained encoder")
    axis.axhline(report.chance, color="black", lw=0.8, ls=":", label="chance")
    axis.set_ylim(0, 1.03)
    axis.set_xticks(layers, ["embed-\ndings", *map(str, layers[1:])])
    axis.set_xlabel("layer of the encoder")
    axis.set_ylabel("nearest occurrence\nhas the same translation")
    labels = ", ".join(report.labels)
    axis.set_title(f"{report.word}: {labels}".replace("$", r"\$"), fontsize=10)
    axis.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=2, frameon=False)
    save_figure(figure, file)
    pyplot.close(figure)
    return file
