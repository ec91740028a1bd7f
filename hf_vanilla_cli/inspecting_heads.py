"""`inspect --heads` and `inspect --align`: a model over a corpus."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from .shared import warn
from .streams import opened

FIGURES = (".svg", ".png", ".pdf")


def heads_mode(run: str | None, source: str | None, target: str | None, *, heads: bool, **options: Any) -> None:
    show_heads(only_run(run, source, "--heads"), **options)


def align_mode(run: str | None, source: str | None, target: str | None, *, align: bool, **options: Any) -> None:
    show_alignments(only_run(run, source, "--align"), **options)


def only_run(run: str | None, source: str | None, flag: str) -> Path:
    if run is None or source is not None:
        raise click.UsageError(f"{flag} looks at many pairs: give RUN, and texts of your own with --data FILE")
    from hf_vanilla.hub_name import folder_of

    return folder_of(run)


def show_heads(
    run: Path,
    *,
    data: Path | None = None,
    conllu: Path | None = None,
    pairs: int = 300,
    prune: bool = False,
    prefix: str = "",
    figure: Path | None = None,
    output: Path | None = None,
    as_json: bool = False,
) -> None:
    """A table, or JSON, of all heads of RUN; and a picture if it is asked for."""
    from hf_vanilla.inspection.heads import heads_report
    from hf_vanilla.inspection.heads_figure import draw_heads
    from hf_vanilla.inspection.heads_table import as_dict, as_table

    if figure is not None:
        check_figure(figure)
    report = heads_report(run, data=data, conllu=conllu, number=pairs, prune=prune, prefix=prefix)
    if figure is not None:
        draw_heads(report, figure)
        warn(f"{figure}: the change of the loss without each head, and roles")
    answer([json.dumps(as_dict(report), indent=2, ensure_ascii=False) if as_json else as_table(report)], output)


def show_alignments(
    run: Path,
    *,
    data: Path | None = None,
    gold: Path | None = None,
    soft: bool = False,
    prefix: str = "",
    output: Path | None = None,
    as_json: bool = False,
) -> None:
    """A line of links, or of weights, for each pair; which map they are from, and how good they are, on stderr."""
    from hf_vanilla.inspection.align import align, soft_line
    from hf_vanilla.inspection.align_json import as_dict

    report = align(run, data=data, gold=gold, prefix=prefix)
    for message in report.messages():
        warn(message)
    if as_json:
        answer([json.dumps(as_dict(report, soft), indent=2, ensure_ascii=False)], output)
    else:
        answer((soft_line(each) if soft else str(each) for each in report.alignments), output)


def check_figure(figure: Path) -> None:
    if figure.suffix not in FIGURES:
        raise click.UsageError(f"--figure {figure}: choose a name that ends in {', '.join(FIGURES)}")
    if not figure.absolute().parent.is_dir():
        raise click.UsageError(f"--figure {figure}: there is no folder {figure.parent}")


def answer(lines: Iterable[Any], output: Path | None) -> None:
    """To a file, whole or not at all, or to stdout."""
    text = "".join(f"{line}\n" for line in lines)
    with opened(output or Path("-")) as stream:
        stream.write(text.encode())
