"""How good translations are."""

import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .shared import ModelName, json_option, overrides_argument, working
from .streams import show_warnings_once

if TYPE_CHECKING:
    from hf_vanilla.evaluation.examples import Files
    from hf_vanilla.evaluation.outcome import Outcome

FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


@click.command()
@click.argument("run", required=False, type=ModelName())
@overrides_argument
@click.option("--split", type=click.Choice(["test", "validation"]), help="Of RUN's recipe; test if not given.")
@click.option("--source", "sources", multiple=True, type=FILE, help="Sources of another test set.")
@click.option("--prefix", help="What RUN reads before each --source, if it was trained with prefixes.")
@click.option("--reference", "references", multiple=True, type=FILE, help="Repeat it if there are several.")
@click.option("--hypothesis", "hypotheses", multiple=True, type=FILE, help="Translations to measure, without RUN.")
@click.option("--name", "names", multiple=True, help="What to call a test set; if not given, as its file.")
@click.option(
    "--against",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="Another run, or another file of translations: is the difference significant?",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="bleu, chrf, chrf++, ter, exact_match, character_error_rate or token_error_rate; repeat it for several. "
    "If not given, RUN's, or all.",
)
@click.option("--tokenize", help="The tokenizer of BLEU, one of sacrebleu's; if not given, RUN's, or 13a.")
@click.option("--lowercase", is_flag=True, help="BLEU and chrF ignore case, as TER always does.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write a page with examples (HTML).")
@json_option
def evaluate(
    run: str | None,
    overrides: tuple[str, ...],
    split: str | None,
    sources: tuple[Path, ...],
    prefix: str | None,
    references: tuple[Path, ...],
    hypotheses: tuple[Path, ...],
    names: tuple[str, ...],
    against: tuple[Path, ...],
    metrics: tuple[str, ...],
    tokenize: str | None,
    lowercase: bool,
    report: Path | None,
    as_json: bool,
) -> None:
    """
    Measure what RUN translates, a split of its recipe or other files; or translations in a file, without any model.

    \b
    hf-vanilla evaluate RUN
    hf-vanilla evaluate RUN generation.num_beams=1 --against RUN2
    hf-vanilla evaluate RUN --source news.en --reference news.de
    hf-vanilla evaluate RUN data.test='{file: news.tsv, source: 0, target: 1}'
    hf-vanilla evaluate --hypothesis translations.txt --reference news.de

    For several test sets repeat --source (or --hypothesis) and --reference; if each has several references, those of
    the first test set come first. A split measured as the recipe says also updates report and model card of RUN.

    With --source, RUN may also be the name of a run on the Hub: user/name or user/name@revision.
    """
    if (run is None) != bool(hypotheses):
        raise click.UsageError("give either RUN, whose translations are measured, or --hypothesis")
    if report and not report.absolute().parent.is_dir():
        raise click.UsageError(f"--report {report}: there is no folder {report.parent}")
    groups = grouped(references, len(hypotheses or sources))
    check_counts(len(groups), sources=sources, hypotheses=hypotheses, names=names)
    if run is None:
        if overrides or split or prefix:
            raise click.UsageError("overrides, --split and --prefix are for RUN, not for --hypothesis")
        with without_pytorch():
            sets = files_of(sources, groups, hypotheses, names)
            show_outcomes(outcomes_of(sets, against, metrics, tokenize, lowercase), report, as_json)
        return
    if split and sources:
        raise click.UsageError("give either --split or --source and --reference")
    if prefix and not sources:
        raise click.UsageError("--prefix goes with --source: the recipe says the prefixes of its own test set")
    if not (sources or Path(run).is_dir()):
        raise click.UsageError(
            f"{run} is not a directory here, where the data of its recipe would be: give --source and --reference"
        )
    overrides += (f"training.metrics={json.dumps(metrics)}",) if metrics else ()
    overrides += (f"training.bleu_tokenize={json.dumps(tokenize)}",) if tokenize else ()
    with working():
        from hf_vanilla.workflow import measure, measure_files

        with warnings.catch_warnings():
            show_warnings_once()
            if sources:
                sets = files_of(sources, groups, hypotheses, names)
                outcomes = measure_files(run, sets, overrides, against, lowercase, prefix or "")
            else:
                outcomes = measure(Path(run), split or "test", overrides, against, lowercase)
        show_outcomes(outcomes, report, as_json)


def grouped(references: Sequence[Path], number: int) -> list[tuple[Path, ...]]:
    """The references of each of a number of test sets."""
    if number == 0 and not references:
        return []
    if number == 0:
        raise click.UsageError("--reference needs the --source that RUN translates, or --hypothesis")
    if not references or len(references) % number:
        raise click.UsageError(
            f"{len(references)} --reference for {number} test sets: give one for each, or the same number for each"
        )
    each = len(references) // number
    return [tuple(references[start : start + each]) for start in range(0, len(references), each)]


def check_counts(number: int, **given: Sequence[object]) -> None:
    for name, values in given.items():
        if len(values) not in (0, number):
            raise click.UsageError(f"{len(values)} {name} for {number} test sets: give one for each, or none")


def files_of(
    sources: Sequence[Path], references: Sequence[tuple[Path, ...]], hypotheses: Sequence[Path], names: Sequence[str]
) -> list["Files"]:
    from hf_vanilla.evaluation.examples import Files

    given = [list(files) for files in (sources, [group[0] for group in references], hypotheses) if files]
    usual = [[file.name for file in files] for files in given] + [list(map(str, files)) for files in given]
    chosen = names or next((candidates for candidates in usual if len(set(candidates)) == len(references)), usual[0])
    if len(set(chosen)) < len(chosen):
        raise click.UsageError(f"test sets of the same name ({', '.join(chosen)}): give each another --name")
    nothing = [None] * len(references)
    return list(map(Files, chosen, references, sources or nothing, hypotheses or nothing))


def outcomes_of(
    sets: Sequence["Files"], against: Sequence[Path], metrics: Sequence[str], tokenize: str | None, lowercase: bool
) -> list["Outcome"]:
    """Measure hypotheses, without any model."""
    from hf_vanilla.evaluation.examples import read_examples, read_translations
    from hf_vanilla.evaluation.metrics import METRICS, metrics_with
    from hf_vanilla.evaluation.outcome import System, outcome_of

    try:
        chosen = metrics_with({"tokenize": tokenize or "13a", "lowercase": lowercase}, metrics or METRICS)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    examples, hypotheses = read_examples(sets)
    system, baseline = System(", ".join(str(files.hypothesis) for files in sets), hypotheses), None
    if against:
        sizes = {each.name: len(each.rows) for each in examples}
        baseline = System(", ".join(map(str, against)), read_translations(against, sizes))
    return [outcome_of(each, chosen, system, baseline) for each in examples]


def show_outcomes(outcomes: Sequence["Outcome"], report: Path | None, as_json: bool) -> None:
    from hf_vanilla.evaluation.outcome import as_json as json_of
    from hf_vanilla.evaluation.outcome import as_table

    if report:
        from hf_vanilla.evaluation.report_page import page_of
        from hf_vanilla.files import opened_whole

        page = page_of(outcomes)
        with opened_whole(report) as stream:
            stream.write(page.encode())
    click.echo(json.dumps(json_of(outcomes), indent=2, ensure_ascii=False) if as_json else as_table(outcomes))


@contextmanager
def without_pytorch() -> Iterator[None]:
    """
    A block that imports parts of hf_vanilla but not its `__init__`, which registers the Auto classes and for that
    imports PyTorch. Afterwards nothing of it is left, and the package can be imported as usual.
    """
    is_imported = "hf_vanilla" in sys.modules
    spec = find_spec("hf_vanilla")
    if spec and not is_imported:
        sys.modules["hf_vanilla"] = module_from_spec(spec)  # the empty module, which knows where its parts are
    from hf_vanilla.data.errors import InvalidDataError

    try:
        yield
    except (InvalidDataError, OSError) as error:
        raise click.ClickException(str(error)) from None
    finally:
        if not is_imported:
            for name in [name for name in sys.modules if name.partition(".")[0] == "hf_vanilla"]:
                del sys.modules[name]
