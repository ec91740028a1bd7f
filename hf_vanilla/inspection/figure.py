"""One attention map as a picture: the heat map of Bahdanau et al. (2015), figure 3. Needs the extra `plots`."""

import io
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..data.errors import InvalidDataError
from ..files import opened_whole
from ..inference.alignments import Row
from .attention import Attention
from .reading import Kind

MAX_TOKENS = 60
FORMATS = (".svg", ".png", ".pdf")
FONTS = ("DejaVu Sans", "Noto Sans CJK JP", "Noto Sans CJK SC", "Noto Sans", "Noto Sans Devanagari", "Noto Emoji")
"""Those of them that are installed are tried for each character, in this order."""


def draw_figure(
    attention: Attention, picture: Path, kind: Kind, layer: int, head: int | None, row: Row = "output"
) -> Path:
    """
    Write an SVG, PNG or PDF.

    Args:
        layer: From 0.
        head: From 0. None is the mean of all heads.
        row: Whether rows of the target have the name of the token that they predict, or of the one that they read.
    """
    weights = map_of(attention, kind, layer, head)
    if picture.suffix not in FORMATS:
        raise InvalidDataError(f"{picture}: a picture is one of {', '.join(FORMATS)}")
    if max(weights.shape) > MAX_TOKENS:
        raise InvalidDataError(
            f"a map of {weights.shape[0]} by {weights.shape[1]} tokens cannot be read: a picture has at most "
            f"{MAX_TOKENS}; write the page, which can be searched, or a shorter text"
        )
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import font_manager, pyplot

    fonts = installed_fonts(font_manager)
    rows, columns = attention.names(kind)
    title = f"{kind}, layer {layer + 1}, {'mean of the heads' if head is None else f'head {head + 1}'}"
    if row == "input" and kind != "encoder":
        rows = list(map(str, attention.read_tokens))
        title = f"{title}, at the position that reads the target token"
    settings: dict[Any, Any] = {
        "font.family": fonts or ["sans-serif"],
        "svg.fonttype": "path",
        "svg.hashsalt": "attention",
    }
    with mpl.rc_context(settings), warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        figure = heat_map(pyplot, weights, rows, columns, title)
        no_date = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(picture.suffix)  # the same each time
        try:
            save_figure(figure, picture, bbox_inches="tight", metadata=no_date)
        finally:
            pyplot.close(figure)
    warn_of_glyphs(found)
    return picture


def installed_fonts(font_manager: Any) -> list[str]:
    """Of `FONTS`. matplotlib keeps a list of its own, without what was installed after that was made."""
    listed = {font.fname for font in font_manager.fontManager.ttflist}
    for file in set(font_manager.findSystemFonts()) - listed:
        with suppress(OSError, RuntimeError):  # a font that it cannot read
            font_manager.fontManager.addfont(file)
    names = {font.name for font in font_manager.fontManager.ttflist}
    return [font for font in FONTS if font in names]


def map_of(attention: Attention, kind: Kind, layer: int, head: int | None) -> np.ndarray:
    maps = attention.maps.of(kind)
    if not 0 <= layer < len(maps):
        raise InvalidDataError(f"--layer {layer + 1}: the {kind} attention has the layers 1 to {len(maps)}")
    if head is not None and not 0 <= head < maps.shape[1]:
        raise InvalidDataError(f"--head {head + 1}: the model has the heads 1 to {maps.shape[1]}, and mean")
    found: np.ndarray = maps[layer].mean(0) if head is None else maps[layer, head]
    return found


def heat_map(pyplot: Any, weights: np.ndarray, rows: list[str], columns: list[str], title: str) -> Any:
    height, width = weights.shape
    cell = 0.26
    figure, axes = pyplot.subplots(figsize=(1.5 + cell * width, 1.5 + cell * height))
    image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    axes.set_xticks(range(width), [plain(name) for name in columns], rotation=90)
    axes.set_yticks(range(height), [plain(name) for name in rows])
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.set_xticks(np.arange(width + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(height + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="#d3d7dc", linewidth=0.4)
    axes.tick_params(which="minor", length=0)
    axes.set_xlabel(title)
    bar = figure.colorbar(image, ax=axes, fraction=0.04, pad=0.03, ticks=[0, 0.5, 1])
    bar.ax.set_ylabel("attention")
    return figure


def plain(name: str) -> str:
    """A dollar sign would begin a formula."""
    shown = name if len(name) <= 16 else f"{name[:15]}…"
    return shown.replace("$", r"\$").replace("␣", "_")


def warn_of_glyphs(found: list[warnings.WarningMessage]) -> None:
    if any("missing from" in str(each.message) for each in found):
        warnings.warn(
            "some characters are boxes in the picture, as no font of this machine that was tried has them: install the "
            f"one of their script ({', '.join(FONTS)})",
            stacklevel=3,
        )


def save_figure(figure: Any, file: Path, **options: Any) -> None:
    """As the format that the name ends in, all of it or nothing."""
    content = io.BytesIO()
    figure.savefig(content, format=file.suffix.removeprefix(".").lower(), dpi=150, **options)
    with opened_whole(file) as stream:
        stream.write(content.getvalue())
