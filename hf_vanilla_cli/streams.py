"""What commands that answer line by line have in common: where lines come from, where answers go, what is shown."""

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any

import click

Write = Callable[[str], None]
LINE_SEPARATORS = {ord(end): json.dumps(end)[1:-1] for end in "\x7f\x85\u2028\u2029"}

input_option = click.option("--input", "source", type=click.File("rb"), default="-", help="If not given, stdin.")
output_option = click.option(
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    default="-",
    help="If not given, stdout. Until the last line is there, the file is called FILE.partial: a job that is killed "
    "leaves whole lines in that, and an earlier FILE as it was.",
)
dtype_option = click.option(
    "--dtype",
    type=click.Choice(["auto", "bfloat16", "float16", "float32"]),
    default="auto",
    show_default=True,
    help="What to compute in. auto: bfloat16 where the processor has instructions for it, else float32. bfloat16 is "
    "faster and rounds more, so near ties may be decided otherwise, also with other lines in the batch; in float32 a "
    "line has the same answer alone and among others.",
)
device_option = click.option("--device", help="Such as cpu or cuda:1. If not given, an accelerator if there is one.")
max_tokens_option = click.option(
    "--max-tokens",
    type=click.IntRange(1),
    help="Of a batch: source tokens with padding, times the beams of each sentence. Less needs less memory. "
    "[default: 16384]",
)
max_source_length_option = click.option(
    "--max-source-length",
    type=click.IntRange(2),
    help="In tokens. Of longer lines the beginning is used, and stderr names the first. Learned positions may allow "
    "fewer. [default: 1024]",
)
prefix_option = click.option(
    "--prefix", default="", help="What sources of this direction or task began with in the training, such as <2de>."
)


@contextmanager
def opened(output: Path) -> Iterator[IO[bytes]]:
    """Where answers go. A file has its name when all of them are there."""
    from hf_vanilla.files import opened_whole

    if output == Path("-"):
        yield sys.stdout.buffer
    else:
        with opened_whole(output) as stream:
            yield stream


@contextmanager
def answering(output: Path) -> Iterator[Write]:
    """
    A block that writes line by line, with warnings in a line of their own.

    Whoever stops to read (`| head -1`) ends the block, and that is no error.
    """
    with warnings.catch_warnings(), opened(output) as stream:
        show_warnings_once()

        def write(line: str) -> None:
            stream.write(line.encode() + b"\n")
            stream.flush()  # line by line: what a killed job leaves ends with a whole one

        try:
            yield write
        except BrokenPipeError:
            if output != Path("-"):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes there once more at its end


def show_warnings_once() -> None:
    """Of each kind the first, as a line on stderr."""
    from hf_vanilla.data.errors import TextWarning

    seen: set[type[Warning]] = set()
    others: Callable[..., None] = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *details: Any, **more: Any) -> None:
        if not issubclass(category, TextWarning):
            others(message, category, *details, **more)
        elif category not in seen:
            seen.add(category)
            click.echo(f"Warning: {message}", err=True)

    warnings.simplefilter("always", TextWarning)
    warnings.showwarning = show


@contextmanager
def progress(source: IO[bytes]) -> Iterator[Callable[[int], Any]]:
    """Counts lines on stderr, if that is a terminal and nobody types at another one."""
    from tqdm import tqdm

    is_seen = sys.stderr.isatty() and not source.isatty()
    with tqdm(unit=" lines", disable=not is_seen, file=sys.stderr) as bar:
        yield bar.update


def load_translator(run: str | Path, dtype: str, device: str | None, **limits: int | None) -> Any:
    """A `Translator` as the options say."""
    import torch

    from hf_vanilla import Translator
    from hf_vanilla.inference.exported import is_export
    from hf_vanilla.memory import leave_out_of_collections
    from hf_vanilla.precision import bfloat16_is_fast

    if device and not is_export(run):  # an export computes by itself, and says what it cannot
        check_device(device)
    arguments: dict[str, Any] = {} if device is None else {"device_map": device}
    use_cpu = device == "cpu" if device else not torch.accelerator.is_available()
    chosen = ("bfloat16" if bfloat16_is_fast(use_cpu) else "float32") if dtype == "auto" else dtype
    if dtype != "auto" or not is_export(run):  # an export computes in the type that it was made for
        arguments["dtype"] = getattr(torch, chosen)
    translator = Translator.from_pretrained(run, **arguments, **limits)
    leave_out_of_collections()
    return translator


def check_device(device: str) -> None:
    """Refuse one that PyTorch does not have, before anything is loaded."""
    import torch

    if device == "auto":  # one or several, which accelerate chooses
        return
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        raise click.BadParameter(str(error).partition("\n")[0], param_hint="--device") from None


def lines_with_targets(
    windows: Iterator[list[bytes]], source: IO[bytes], file: IO[bytes] | None, translator: Any
) -> Iterator[list[Any]]:
    """Lines for the translator. What is known of their targets stands in another file, if there is one."""
    from hf_vanilla.data.corpus import without_byte_order_mark
    from hf_vanilla.data.errors import InvalidDataError
    from hf_vanilla.inference.lines import Line, in_step, texts_of

    first = 1
    others = without_byte_order_mark(file or ())
    for window in windows:
        texts, targets = texts_of(window, name_of(source), first), [""] * len(window)
        if file is not None:
            targets = texts_of(in_step(window, others, name_of(file), first), name_of(file), first)
        yield [
            Line(number, translator.columns_of(text, number), target)
            for number, (text, target) in enumerate(zip(texts, targets, strict=True), first)
        ]
        first += len(window)
    if file is not None and next(others, None) is not None:
        raise InvalidDataError(f"{name_of(source)}: ends after line {first - 1}, where {name_of(file)} goes on")


def name_of(file: IO[bytes]) -> str:
    return getattr(file, "name", "<stdin>")


def write_answers(
    output: Path,
    source: IO[bytes],
    processes: Any,
    lines: Iterator[list[Any]],
    answer: Callable[[Sequence[Any]], list[Any]],
    shown: Callable[[Any, Any], Iterator[str]],
) -> None:
    """
    Answer windows of lines as they come, and write each window when it is done.

    Args:
        processes: All of a launcher: the first one reads and writes, the others only answer.
        shown: How a line and its answer are written.
    """
    goal = output if processes.is_first else Path(os.devnull)
    with answering(goal) as write, progress(source) as advance, closing(processes.answered(lines, answer)) as windows:
        for window, answers in windows:
            for line, of_line in zip(window, answers, strict=True):
                for text in shown(line, of_line):
                    write(text)
            advance(len(window))


def json_line(facts: Mapping[str, Any]) -> str:
    """JSON without any character that a reader may take for the end of a line."""
    return json.dumps(facts, ensure_ascii=False).translate(LINE_SEPARATORS)
