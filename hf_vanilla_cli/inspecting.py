"""
What goes on inside of a model.

`inspect` has modes: what it does is said by an option, and each mode is one function. An option belongs to some modes,
and is refused in the others.
"""

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from .inspecting_heads import align_mode, heads_mode
from .inspecting_lessons import lessons_mode
from .inspecting_vectors import senses_mode, vectors_mode
from .shared import ModelName, json_option, working
from .streams import show_warnings_once

FILE = click.Path(dir_okay=False, path_type=Path)
PAGE = "attention.html"


class Mode(NamedTuple):
    """
    Args:
        work: Gets RUN, SOURCE, TARGET and the options of this mode.
        flag: The option that asks for it; "" for what is done without any.
        options: The others that it knows.
    """

    work: Callable[..., None]
    flag: str
    options: frozenset[str]


def numbers(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[int | None, ...]:
    """Layers or heads as people count them, from 1, to those of the package, from 0. None is the mean."""
    found: list[int | None] = []
    for value in values:
        if value == "mean" and parameter.name == "head":
            found.append(None)
        elif value.isdecimal() and int(value) > 0:
            found.append(int(value) - 1)
        else:
            allowed = "a number from 1, or mean" if parameter.name == "head" else "a number from 1"
            raise click.BadParameter(f"{value!r} is not {allowed}", context, parameter)
    return tuple(found)


@click.command()
@click.argument("run", required=False, type=ModelName())
@click.argument("source", required=False)
@click.argument("target", required=False)
@click.option("--output", type=FILE, help=f"Where the page goes, {PAGE} if not given; or what else is printed.")
@click.option("--figure", type=FILE, help="Draw one map instead of the page: SVG, PNG or PDF.")
@click.option("--arrays", type=FILE, help="Write all weights, tokens and masks as they are, for NumPy (.npz).")
@click.option(
    "--kind",
    multiple=True,
    type=click.Choice(["encoder", "decoder", "cross"]),
    help="Which attention: repeat it for several. If not given, all; for --figure cross.",
)
@click.option("--layer", multiple=True, callback=numbers, help="From 1: repeat it for several.")
@click.option("--head", multiple=True, callback=numbers, help="From 1, or mean: repeat it for several.")
@click.option(
    "--prefix",
    default="",
    help="What sources of this direction or task began with in the training. Of RUN's validation pairs, those with it.",
)
@click.option(
    "--heads",
    is_flag=True,
    help="What all heads do over many pairs, and how much RUN needs them; --figure draws layers by heads.",
)
@click.option(
    "--align",
    is_flag=True,
    help="The links of many pairs, as 0-0 2-1: source word 0 gave target word 0. Which map they are from is said.",
)
@click.option(
    "--data",
    type=FILE,
    help="For all that looks at many texts: a source, a tab and a target in each line (for --vectors the target may be "
    "left out). If not given, RUN's validation pairs.",
)
@click.option("--pairs", type=click.IntRange(1), default=300, show_default=True, help="For --heads: how many pairs.")
@click.option("--conllu", type=FILE, help="For --heads: sentences with dependencies; which heads find them?")
@click.option("--prune", is_flag=True, help="For --heads: loss and BLEU with fewer and fewer heads.")
@click.option(
    "--gold",
    type=FILE,
    help="For --align: the known links of pair n in line n, 1-2 for a sure and 1?2 or 1p2 for a possible one, from 0. "
    "The alignment error rate of all maps is told.",
)
@click.option("--soft", is_flag=True, help="For --align: the weights of all source words, as Marian writes them.")
@click.option("--vectors", is_flag=True, help="Vectors of texts and tokens, from the encoder, into --output FILE.npz.")
@click.option("--neighbours", is_flag=True, help="The texts nearest to each text, with or without --vectors.")
@click.option(
    "--pool",
    type=click.Choice(["mean", "first", "last"]),
    default="mean",
    show_default=True,
    help="For --vectors and --neighbours: the vector of a text is the mean of its tokens, special ones left out, or "
    "that of the first or the last token (<eos>). --layer is that of the encoder, the last one if not given.",
)
@click.option(
    "--senses",
    metavar="WORD",
    help="How well each layer of the encoder tells the translations of a word apart: the share of its occurrences "
    "whose nearest one has the same translation. Beside it labels shuffled, and an encoder that was never trained: "
    "that has 0.60 to 0.77 already, so only what is above it comes from the training.",
)
@click.option(
    "--lessons",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Needs no RUN, and about a minute: what the paper says of positions, scaling, length and depth, tried out.",
)
@json_option
@click.pass_context
def inspect(context: click.Context, /, run: str | None, source: str | None, target: str | None, **options: Any) -> None:
    """
    Look at what RUN attends to while it writes the translation of SOURCE, or TARGET if it is given.

    RUN is a directory with a model, such as a run, or its name on the Hub: user/name or user/name@revision.

    \b
    hf-vanilla inspect RUN "a text"
    hf-vanilla inspect RUN "a text" "its translation" --output page.html
    hf-vanilla inspect RUN "a text" --figure map.svg --kind cross --layer 2 --head mean
    hf-vanilla inspect RUN "a text" --arrays maps.npz
    hf-vanilla inspect RUN --heads --prune --figure heads.png
    hf-vanilla inspect RUN --align --data pairs.tsv --gold links.txt
    hf-vanilla inspect RUN --vectors --neighbours --output vectors.npz
    hf-vanilla inspect RUN --senses bank --data pairs.tsv --figure bank.svg
    hf-vanilla inspect --lessons DIR

    The page needs no network, and no other file: all maps, what each weight adds, and what hiding each word of the
    source changes. It begins with the map that is the best alignment. A source in several parts has tabs between them.

    Layers and heads are counted from 1 here and in all that is printed; words and characters of links from 0. (In
    Python, in generation_config.json and in the arrays all are counted from 0.)
    """
    given = {name for name in options if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT}
    mode = mode_of(given)
    with working(), warnings.catch_warnings():
        show_warnings_once()
        mode.work(run, source, target, **{name: options[name] for name in mode.options | {mode.flag} if name})


def mode_of(given: set[str]) -> Mode:
    """The mode that the options ask for."""
    mode = next((mode for mode in MODES if mode.flag in given), MODES[-1])
    others = sorted(given - mode.options - {mode.flag})
    if others:
        flags = ["--json" if name == "as_json" else f"--{name.replace('_', '-')}" for name in others]
        what = f"with --{mode.flag}" if mode.flag else "for the page"
        raise click.UsageError(f"{', '.join(flags)} cannot be used {what}")
    return mode


def looked_at(run: str | None, source: str | None, target: str | None, prefix: str) -> Any:
    """In float32: the numbers are looked at, and speed is none of the questions."""
    from hf_vanilla.inspection.looking import look

    from .streams import load_translator

    if run is None or source is None:
        raise click.UsageError('give RUN and a source: hf-vanilla inspect RUN "a text"')
    return look(load_translator(run, "float32", None), source, target, prefix=prefix)


def write_page(
    run: str | None,
    source: str | None,
    target: str | None,
    *,
    output: Path | None,
    arrays: Path | None,
    kind: tuple[Any, ...],
    layer: tuple[int, ...],
    head: tuple[int | None, ...],
    prefix: str,
    as_json: bool,
) -> None:
    from hf_vanilla.files import opened_whole
    from hf_vanilla.inspection.looking import Selection, facts_of
    from hf_vanilla.inspection.page import page_of

    if arrays is not None and output is None and (kind or layer or head):
        raise click.UsageError(
            "--arrays writes all weights: --kind, --layer and --head are for the page beside them (give --output)"
        )
    looking = looked_at(run, source, target, prefix)
    written = {}
    if arrays is not None:
        written["arrays"] = str(write_arrays(looking, arrays))
    if arrays is None or output is not None:
        heads = tuple(each for each in head if each is not None)  # the mean is always there
        selection = Selection(kind or Selection().kinds, layer or None, heads if head else None)
        page = output or Path(PAGE)
        text = page_of(looking, Path(run or "").name, selection)
        with opened_whole(page) as stream:
            stream.write(text.encode())
        written["page"] = str(page)
    is_one = max(len(kind), len(layer), len(head)) == 1
    tell(facts_of(looking, *(map_asked_for(looking, kind, layer, head) if is_one else ())) | written, written, as_json)


def draw(
    run: str | None,
    source: str | None,
    target: str | None,
    *,
    figure: Path,
    arrays: Path | None,
    kind: tuple[Any, ...],
    layer: tuple[int, ...],
    head: tuple[int | None, ...],
    prefix: str,
    as_json: bool,
) -> None:
    from hf_vanilla.inspection.figure import draw_figure
    from hf_vanilla.inspection.looking import facts_of

    if max(len(kind), len(layer), len(head)) > 1:
        raise click.UsageError("--figure draws one map: give --kind, --layer and --head once each")
    looking = looked_at(run, source, target, prefix)
    of_kind, asked = map_asked_for(looking, kind, layer, head)
    drawn = draw_figure(looking.attention, figure, of_kind, asked.layer, asked.head, asked.row)
    written = {"figure": str(drawn)}
    if arrays is not None:
        written["arrays"] = str(write_arrays(looking, arrays))
    tell(facts_of(looking, of_kind, asked) | written, written, as_json)


def map_asked_for(
    looking: Any, kind: Sequence[Any], layer: Sequence[int], head: Sequence[int | None]
) -> tuple[Any, Any]:
    """
    The kind of attention and the map that options name, each given once at most: where not, the first map's if the
    others fit it, else the first layer and the mean.
    """
    from hf_vanilla.inference.alignments import AttentionMap

    first = looking.first
    of_kind: Any = kind[0] if kind else "cross"
    of_layer = layer[0] if layer else (first.layer if of_kind == "cross" else 0)
    is_first = of_kind == "cross" and of_layer == first.layer
    of_head = head[0] if head else (first.head if is_first else None)
    return of_kind, AttentionMap(of_layer, of_head, first.row if is_first and of_head == first.head else "output")


def write_arrays(looking: Any, file: Path) -> Path:
    import numpy as np

    from hf_vanilla.files import opened_whole
    from hf_vanilla.inspection.looking import arrays_of

    arrays: Any = arrays_of(looking)
    with opened_whole(file) as stream:
        np.savez_compressed(stream, **arrays)
    return file


def tell(facts: dict[str, Any], written: dict[str, str], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
        return
    click.echo(facts["target"])
    for what, where in written.items():
        click.echo(f"{what}: {where}", err=True)


OF_MAPS = frozenset({"arrays", "kind", "layer", "head", "prefix", "as_json"})

OF_VECTORS = frozenset({"layer", "pool", "neighbours", "data", "output", "prefix", "as_json"})

# A mode further up may have the flag of one further down among its options.
MODES = (
    Mode(heads_mode, "heads", frozenset({"data", "conllu", "pairs", "prune", "figure", "output", "prefix", "as_json"})),
    Mode(align_mode, "align", frozenset({"data", "gold", "soft", "output", "prefix", "as_json"})),
    Mode(vectors_mode, "vectors", OF_VECTORS),
    Mode(vectors_mode, "neighbours", OF_VECTORS),
    Mode(senses_mode, "senses", frozenset({"data", "figure", "output", "prefix", "as_json"})),
    Mode(lessons_mode, "lessons", frozenset({"as_json"})),
    Mode(draw, "figure", OF_MAPS),
    Mode(write_page, "", OF_MAPS | {"output"}),
)
"""The first whose flag is given; the last one if none is."""
