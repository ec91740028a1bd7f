"""`inspect --vectors`, `--neighbours` and `--senses`: what the states of the encoder say."""

import json
from pathlib import Path
from typing import Any

import click

from .inspecting_heads import answer, check_figure, only_run
from .shared import warn


def vectors_mode(
    run: str | None,
    source: str | None,
    target: str | None,
    *,
    layer: tuple[int, ...],
    pool: Any,
    data: Path | None,
    prefix: str,
    output: Path | None,
    as_json: bool,
    neighbours: bool,
    vectors: bool = False,
) -> None:
    """A file of vectors, or the nearest texts of each text, or both."""
    from hf_vanilla.inspection.vectors import vectors_for

    flag = "--vectors" if vectors else "--neighbours"
    model = only_run(run, source, flag)
    if len(layer) > 1:
        raise click.UsageError(f"{flag} reads one layer: give --layer once")
    if vectors and (output is None or output.suffix != ".npz"):
        raise click.UsageError("--vectors writes arrays for NumPy: give --output FILE.npz")
    found = vectors_for(model, layer=layer[0] if layer else None, pool=pool, data=data, prefix=prefix)
    written: dict[str, Any] = {}
    if vectors and output is not None:
        written = write_vectors(found, output)
    if neighbours:
        show_neighbours(found, written, None if vectors else output, as_json)
    elif as_json:
        click.echo(json.dumps(written, ensure_ascii=False))


def write_vectors(found: Any, file: Path) -> dict[str, Any]:
    import numpy as np

    from hf_vanilla.files import opened_whole
    from hf_vanilla.inspection.vectors import arrays_of

    arrays: Any = arrays_of(found)
    with opened_whole(file) as stream:
        np.savez_compressed(stream, **arrays)
    facts = {"layer": found.layer + 1, "pool": found.pool, "texts": len(found.of_texts)}
    facts |= {"tokens": len(arrays["token_ids"]), "size": found.of_texts.shape[1]}
    warn(
        f"{file}: vectors of {found.texts.name} and of their {facts['tokens']:,} tokens, from layer {facts['layer']} "
        f"of the encoder ({found.pool})"
    )
    return facts | {"vectors": str(file)}


def show_neighbours(found: Any, written: dict[str, Any], output: Path | None, as_json: bool) -> None:
    from hf_vanilla.inference.units import line_of
    from hf_vanilla.inspection.neighbours import neighbours_of

    near = neighbours_of(found.of_texts)
    lines = [line_of(source) for source in found.texts.sources]
    each = [
        {
            "text": lines[place],
            "nearest": [
                {"text": lines[other], "similarity": float(value)} for other, value in zip(others, values, strict=True)
            ],
        }
        for place, (others, values) in enumerate(zip(near.places, near.similarities, strict=True))
    ]
    warn(
        f"correction for anisotropy: {near.correction}. Two texts have a cosine of {near.cosine_before:.2f} on average "
        f"before it, {near.cosine_after:.2f} after it"
    )
    if as_json:
        cosines = {"mean_cosine_before": near.cosine_before, "mean_cosine_after": near.cosine_after}
        facts = {"layer": found.layer + 1, "pool": found.pool, **written, "correction": near.correction, **cosines}
        answer([json.dumps(facts | {"texts": each}, indent=2, ensure_ascii=False)], output)
    else:
        shown = [line for one in each for line in (one["text"], *map(in_a_line, one["nearest"]))]
        answer(shown, output)


def in_a_line(neighbour: Any) -> str:
    return f"  {neighbour['similarity']:+.3f}  {neighbour['text']}"


def senses_mode(
    run: str | None,
    source: str | None,
    target: str | None,
    *,
    senses: str,
    data: Path | None,
    prefix: str,
    figure: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """A table, or JSON, of the layers; and a picture if it is asked for."""
    from hf_vanilla.inspection.senses import senses_of
    from hf_vanilla.inspection.senses_figure import draw_senses

    model = only_run(run, source, "--senses")
    if figure is not None:
        check_figure(figure)
    report = senses_of(model, senses, data=data, prefix=prefix)
    if figure is not None:
        draw_senses(report, figure)
        warn(f"{figure}: how well each layer tells the translations of {senses!r} apart")
    answer([json.dumps(report.as_dict(), indent=2, ensure_ascii=False) if as_json else report.as_table()], output)
