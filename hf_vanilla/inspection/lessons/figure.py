"""Figures of lessons as SVG, and as a part of a page that allows no styles but its own. Needs the extra `plots`."""

import re
from collections.abc import Callable
from io import StringIO
from typing import Any

INK = "#000000"
"""What matplotlib draws axes with; on the page it is the colour of text."""


def svg_of(draw: Callable[[Any], None], name: str) -> str:
    """The figure as a file of its own, the same each time."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    settings: dict[Any, Any] = {
        "svg.fonttype": "path",
        "svg.hashsalt": name,
        "font.size": 9,
        "font.family": "DejaVu Sans",
    }
    with mpl.rc_context(settings):
        figure = pyplot.figure(figsize=(7.2, 3.2), layout="constrained")
        draw(figure)
        for axis in figure.axes:
            axis.spines[["top", "right"]].set_visible(False)
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    return text.getvalue()


def inline(svg: str, name: str, caption: str) -> str:
    """
    The same for the page: no background, axes in the colour of the text, attributes in place of styles (which the
    Content-Security-Policy forbids), and names that no other figure of the page has.

    Args:
        caption: Escaped.
    """
    drawing = svg[svg.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r' style="([^"]*)"', lambda found: attributes_of(found[1]), drawing)
    drawing = drawing.replace('fill="#ffffff"', 'fill="none"').replace(INK, "currentColor")
    drawing = re.sub(r' id="', f' id="{name}-', drawing)
    drawing = re.sub(r'xlink:href="#', f'href="#{name}-', drawing)
    drawing = drawing.replace("url(#", f"url(#{name}-")
    return re.sub(
        r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', rf'<svg \1 role="img" aria-label="{caption}">', drawing, count=1
    )


def attributes_of(style: str) -> str:
    """`fill: none; stroke: #000000` as attributes of SVG."""
    pairs = (each.partition(":") for each in style.split(";") if each.strip())
    return "".join(f' {key.strip()}="{value.strip()}"' for key, _, value in pairs)
