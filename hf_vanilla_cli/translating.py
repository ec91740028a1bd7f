"""Text in, text out."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import click

from .shared import json_option, model_argument, working
from .streams import (
    device_option,
    dtype_option,
    input_option,
    json_line,
    lines_with_targets,
    load_translator,
    max_source_length_option,
    max_tokens_option,
    output_option,
    prefix_option,
    write_answers,
)


@click.command()
@model_argument
@input_option
@output_option
@click.option("--num-beams", type=click.IntRange(1), help="The width of the search, if not the run's own.")
@click.option("--length-penalty", type=float, help="The exponent of the length penalty, if not the run's own.")
@click.option(
    "--n-best",
    type=click.IntRange(1),
    help="Write so many translations of each line, the best first (samples: as they are drawn). Without --num-beams "
    "the search is as wide as it has to be for them.",
)
@click.option(
    "--scores",
    is_flag=True,
    help="Write the score and a tab before each translation: its log-probability (natural logarithm) divided by the "
    "length penalty, by which the search ranks.",
)
@click.option(
    "--alignments",
    is_flag=True,
    help="Write the alignment and a tab before each translation, behind its score: 0-0 2-1 says that word 0 of the "
    "source gave word 0 of the translation, and word 2 word 1 (characters where a text is spelt; the card says which). "
    "A line that was cut at --max-source-length has none.",
)
@prefix_option
@click.option(
    "--prefix-file",
    type=click.File("rb"),
    help="Line n of it is what the translation of line n begins with, word for word: a last word Mann does "
    "not become Mannschaft; punctuation may follow, and after Chinese or Thai anything. Scores are of what follows.",
)
@click.option("--sample", is_flag=True, help="Draw translations at random instead of searching for the best.")
@click.option("--temperature", type=click.FloatRange(0, min_open=True), help="Of --sample; 1 is the model's own.")
@click.option("--top-k", type=click.IntRange(0), help="Of --sample: from this many tokens; 50 if not given, 0 is all.")
@click.option("--top-p", type=click.FloatRange(0, 1), help="Of --sample: from tokens with this probability together.")
@click.option(
    "--seed",
    type=click.IntRange(0),
    help="Of --sample: line n is drawn with the same random numbers again, whatever --max-tokens, the other lines and "
    "the number of processes. So with --dtype float32 its text is the same again, but for rounding.",
)
@max_source_length_option
@max_tokens_option
@dtype_option
@device_option
@json_option
def translate(
    run: str,
    source: IO[bytes],
    output: Path,
    num_beams: int | None,
    length_penalty: float | None,
    n_best: int | None,
    scores: bool,
    alignments: bool,
    prefix: str,
    prefix_file: IO[bytes] | None,
    sample: bool,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    max_source_length: int | None,
    max_tokens: int | None,
    dtype: str,
    device: str | None,
    as_json: bool,
) -> None:
    """
    Translate line by line: as many lines out as in, in their order, in memory that does not grow with their number.

    RUN is a directory with a model, such as a run, or its name on the Hub: user/name, or user/name@revision for a
    branch, a tag or a commit.

    Where the model was trained on sources with several columns, tabs separate them. An empty line stays empty. Bytes
    that are not UTF-8 are read as U+FFFD. Line ends inside of a translation are written as spaces.

    \b
    A line that is typed, or that a program writes and then waits, is answered at once. Files and fast pipes are read in
    windows of up to 4,096 lines, each sorted by length and written when it is done.

    \b
    With --n-best N, lines (n - 1) N + 1 to n N of the output belong to line n of the input. With --scores the text is
    what stands behind the first tab: cut -f 2-, with --alignments behind one more. With --json each line gives one
    line, with score and alignment if they are asked for:
      {"source": ..., "translations": [{"text": ..., "score": ..., "alignment": [[0, 0], [2, 1]]}, ...]}

    \b
    Several processes share the lines:
      accelerate launch --num_processes 2 -m hf_vanilla translate RUN
    """
    of_samples = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    given = {name: value for name, value in of_samples.items() if value is not None}
    if given and not sample:
        raise click.UsageError(f"--{next(iter(given)).replace('_', '-')} is for --sample")
    if sample and num_beams not in (None, 1):
        raise click.UsageError(f"--sample draws one token after the other: it has no --num-beams {num_beams}")
    if n_best and num_beams and n_best > num_beams and not sample:
        raise click.UsageError(f"--n-best {n_best} needs --num-beams {n_best} or more, not {num_beams}")
    options = given | {"num_beams": num_beams, "length_penalty": length_penalty, "num_return_sequences": n_best}
    options = {name: value for name, value in options.items() if value is not None}
    with working():
        from hf_vanilla.inference.lines import windows_of_file
        from hf_vanilla.inference.sharing import Processes

        processes = Processes()
        windows = windows_of_file(source) if processes.is_first else iter(())  # reads while the model is loaded
        translator = load_translator(run, dtype, device, max_tokens=max_tokens, max_source_length=max_source_length)

        align = links_of(translator, prefix) if alignments else None

        def found(lines: Sequence[Any]) -> list[Any]:
            hypotheses = translator.search(lines, prefix=prefix, with_scores=scores, do_sample=sample, **options)
            return align(lines, hypotheses) if align else [[(one, None) for one in each] for each in hypotheses]

        shown = ShownTranslations(scores, as_json)
        lines = lines_with_targets(windows, source, prefix_file, translator)
        write_answers(output, source, processes, lines, found, shown)


def links_of(translator: Any, prefix: str) -> Callable[[Sequence[Any], Sequence[Any]], list[Any]]:
    """What gives each translation together with its alignment."""
    from hf_vanilla.inference.alignments import Aligner

    aligner = Aligner(translator.model, translator.tokenizer, max_tokens=translator.max_tokens)

    def align(lines: Sequence[Any], found: Sequence[Any]) -> list[Any]:
        sources = translator.encode_batch([line.parts for line in lines], prefix)
        is_whole = [len(ids) < translator.max_source_length for ids in sources]
        chosen = [(place, each) for place, of_one in enumerate(found) if is_whole[place] for each in of_one]
        alignments = iter(
            aligner.align(
                [lines[place].parts for place, _ in chosen],
                [each.text for _, each in chosen],
                source_ids=[sources[place] for place, _ in chosen],
                target_ids=[each.token_ids for _, each in chosen],
            )
        )
        return [
            [(each, next(alignments).links if whole else ()) for each in of_one]
            for of_one, whole in zip(found, is_whole, strict=True)
        ]

    return align


class ShownTranslations:
    """How a line and its translations are written."""

    def __init__(self, scores: bool, as_json: bool):
        self.scores, self.as_json = scores, as_json

    def __call__(self, line: Any, found: Sequence[Any]) -> Iterator[str]:
        if self.as_json:
            source = line.parts[0] if len(line.parts) == 1 else list(line.parts)
            yield json_line({"source": source, "translations": [self._facts(*each) for each in found]})
        else:
            yield from ("\t".join(self._cells(*each)) for each in found)

    def _facts(self, hypothesis: Any, links: Sequence[Any] | None) -> dict[str, Any]:
        score = {"score": hypothesis.score} if self.scores else {}
        return {"text": hypothesis.text} | score | ({} if links is None else {"alignment": links})

    def _cells(self, hypothesis: Any, links: Sequence[Any] | None) -> Iterator[str]:
        from hf_vanilla.inference.lines import as_line

        if self.scores:
            yield f"{hypothesis.score:.6f}"
        if links is not None:
            yield " ".join(f"{source}-{target}" for source, target in links)
        yield as_line(hypothesis.text)
