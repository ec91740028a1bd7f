"""How probable given translations are."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import click

from .shared import json_option, model_argument, working
from .streams import (
    device_option,
    dtype_option,
    json_line,
    lines_with_targets,
    load_translator,
    max_source_length_option,
    max_tokens_option,
    name_of,
    output_option,
    prefix_option,
    write_answers,
)


@click.command()
@model_argument
@click.option("--source", type=click.File("rb"), default="-", help="If not given, stdin.")
@click.option(
    "--target",
    type=click.File("rb"),
    help="Line n is the translation of line n. If not given, it stands in the source's line, behind a tab.",
)
@output_option
@click.option("--normalise", is_flag=True, help="Divide by the length penalty, as the scores of translations are.")
@click.option("--tokens", is_flag=True, help="Write a tab and the log-probability of each token, too, <eos> included.")
@prefix_option
@max_source_length_option
@max_tokens_option
@dtype_option
@device_option
@json_option
def score(
    run: str,
    source: IO[bytes],
    target: IO[bytes] | None,
    output: Path,
    normalise: bool,
    tokens: bool,
    prefix: str,
    max_source_length: int | None,
    max_tokens: int | None,
    dtype: str,
    device: str | None,
    as_json: bool,
) -> None:
    """
    Write the log-probability (natural logarithm) of each target, given its source.

    RUN is a directory with a model, such as a run, or its name on the Hub: user/name or user/name@revision.

    That of a translation is its score in `translate --scores` if --normalise is given, unless the translation was cut
    at the limit of length, or its text would be split into other tokens than those that the search found. A target that
    is longer than --max-source-length has none: NaN.

    \b
    With --json each pair gives one line, with --tokens also its tokens as they stand in the vocabulary:
      {"log_probability": ..., "normalised": ..., "tokens": [[token, log-probability], ...]}
    """
    with working():
        from hf_vanilla.inference.lines import windows_of_file
        from hf_vanilla.inference.sharing import Processes

        processes = Processes()
        windows = windows_of_file(source) if processes.is_first else iter(())
        translator = load_translator(run, dtype, device, max_tokens=max_tokens, max_source_length=max_source_length)

        def shown(line: Any, found: Any) -> Iterator[str]:
            each = list(zip(found.tokens, found.token_log_probabilities, strict=False))
            if as_json:
                facts = {"log_probability": found.log_probability, "normalised": found.normalised}
                yield json_line(numbers_of_json(facts) | ({"tokens": each} if tokens else {}))
                return
            value = found.normalised if normalise else found.log_probability
            yield f"{value:.6f}" + ("\t" + " ".join(f"{one:.6f}" for _, one in each) if tokens else "")

        def scores(lines: Sequence[Any]) -> list[Any]:
            return translator.score_lines(lines, prefix)

        if target is None:
            lines = lines_with_cells(windows, source, translator)
        else:
            lines = lines_with_targets(windows, source, target, translator)
        write_answers(output, source, processes, lines, scores, shown)


def lines_with_cells(windows: Iterator[list[bytes]], source: IO[bytes], translator: Any) -> Iterator[list[Any]]:
    """Lines for the translator, whose last column is the target."""
    from hf_vanilla.data.errors import InvalidDataError
    from hf_vanilla.inference.lines import Line, texts_of

    first, columns = 1, translator.columns
    for window in windows:
        lines = []
        for number, text in enumerate(texts_of(window, name_of(source), first), first):
            *parts, target = text.split("\t", columns)
            if len(parts) < columns:
                raise InvalidDataError(
                    f"{name_of(source)}:{number}: has {len(parts) + 1} columns, separated by tabs, not {columns + 1}: "
                    f"{columns} of the source and one of the target. Or give --target FILE"
                )
            lines.append(Line(number, tuple(parts), target))
        yield lines
        first += len(window)


def numbers_of_json(facts: dict[str, float]) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {name: None if value != value else value for name, value in facts.items()}
