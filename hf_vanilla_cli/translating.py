"""Text in, text out."""

from pathlib import Path
from typing import IO, Any

import click

from .shared import run_argument, working


@click.command()
@run_argument
@click.option("--input", "source", type=click.File("rb"), default="-", help="If not given, stdin.")
@click.option("--output", type=click.File("w", encoding="utf-8"), default="-", help="If not given, stdout.")
@click.option("--num-beams", type=click.IntRange(1), help="The width of the search, if not the run's own.")
def translate(run: Path, source: IO[bytes], output: IO[str], num_beams: int | None) -> None:
    """Translate line by line. Where sources have several columns, tabs separate them."""
    with working():
        from hf_vanilla.data.corpus import text_of, without_byte_order_mark
        from hf_vanilla.inference.translator import Translator

        # All lines are read before --output is opened: what cannot be read leaves an earlier output as it was.
        name, numbered = getattr(source, "name", "<stdin>"), enumerate(without_byte_order_mark(source), start=1)
        lines = [text_of(line, f"{name}:{number}").split("\t") for number, line in numbered]
        options: dict[str, Any] = {} if num_beams is None else {"num_beams": num_beams}
        for translation in Translator.from_pretrained(run).translate(lines, **options):
            output.write(" ".join(translation.splitlines()) + "\n")
