"""
How large a trained model is in each engine that runs it, how fast, and how often it translates as ours in float32.

All engines have one thread, as the page's has no more, and search with the beams and limits of the run. The time is
that of the best translations, from texts to texts, of models that are loaded; in node it is that of whole n-best lists,
as the page always finds these.
"""

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

import torch

from ..data.corpus import read_pairs
from ..inference.engine import EngineError
from ..inference.translator import Translator
from ..interop.errors import InteropError
from ..interop.export import export
from ..interop.page_engine import FILES as ENGINE_OF_PAGE
from ..memory import keep_freed_memory
from ..messages import say
from ..precision import bfloat16_is_fast
from ..run_directory import GENERATION_CONFIG, RECIPE, TOKENIZER, TOKENIZER_CONFIG
from ..training.recipe import load_recipe
from ..weights import CONFIG
from .rounds import Figures, Row, in_a_fresh_process, measured_rows

WARM_UP = 64  # sentences that are translated before the clock starts
NEEDED = (CONFIG, GENERATION_CONFIG, TOKENIZER, TOKENIZER_CONFIG, "model*.safetensors")
RUNNER = Path(__file__).with_name("page_in_node.mjs")
EXPORTS = {
    "CTranslate2, float32": ("ctranslate2", "float32"),
    "CTranslate2, int8": ("ctranslate2", "int8"),
    "onnxruntime, float32": ("onnx", "float32"),
    "onnxruntime, int8": ("onnx", "int8"),
    "node, int8": ("page", "int8"),
}

SECONDS, SPEED, BEST, LISTS, SIZE = "seconds", "sentences per second", "% of best equal", "% of lists equal", "MB"

Sources = Sequence[tuple[str, Sequence[Sequence[str]]]]
"""Those of each prefix, after it."""
Found = tuple[float, list[str], list[list[str]]]
"""Seconds, the best translation of each source, and its n-best list."""
Search = Callable[[Sources], Found]


def compare_engines(run: Path, sentences: int, rounds: int, engine_of_page: Path | None = None) -> list[Row]:
    """
    Figures of all engines that are there. Which are not, and why, is said.

    Args:
        engine_of_page: The folder of the npm package onnxruntime-web; if not given, npm downloads it.
    """
    sources = sources_of(run, sentences)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        contenders = {
            name: partial(measure, search, sources, size / 1e6, folder / "ours.json")
            for name, (size, search) in searches_of(run, folder, engine_of_page).items()
            if name not in EXPORTS or works(name, search, sources)
        }
        number = sum(len(texts) for _, texts in sources)
        return measured_rows(f"{number:,} sentences, one thread", contenders, rounds)


def sources_of(run: Path, sentences: int) -> Sources:
    """The first sentences of the test set that are not empty, together with others of the same prefix."""
    recipe = load_recipe(run / RECIPE)
    pairs = read_pairs(recipe.data.test or recipe.data.validation)
    filled = [pair for pair in pairs if any(part.strip() for part in pair.source)][:sentences]
    grouped = groupby(sorted(filled, key=lambda pair: pair.prefix), key=lambda pair: pair.prefix)
    return [(prefix, [pair.source for pair in group]) for prefix, group in grouped]


def searches_of(run: Path, folder: Path, engine_of_page: Path | None) -> dict[str, tuple[int, Search]]:
    """For each engine the bytes of its files and how it searches; ours in float32 is the first."""
    size = sum(file.stat().st_size for pattern in NEEDED for file in run.glob(pattern))
    found: dict[str, tuple[int, Search]] = {}
    found["hf_vanilla, float32"] = (size, partial(search_here, run, dtype=torch.float32))
    if bfloat16_is_fast(use_cpu=True):
        found["hf_vanilla, bfloat16"] = (size, partial(search_here, run, dtype=torch.bfloat16))
    else:
        say("left out: hf_vanilla, bfloat16: this processor has no instructions for it")
    for name, (to, quantization) in EXPORTS.items():
        output = folder / f"{to}-{quantization}"
        options = {"engine": engine_of_page} if to == "page" else {}
        try:
            files = export(run, to, output, quantization=quantization, **options)["files"]
        except (InteropError, EngineError) as error:
            say(f"left out: {name}: {error}")
            continue
        size = sum(entry["size"] for file, entry in files.items() if file not in ENGINE_OF_PAGE)
        found[name] = (size, partial(search_in_node if to == "page" else search_here, output))
    return found


def works(name: str, search: Search, sources: Sources) -> bool:
    """Whether the engine of an export is there, and does what the run's generation config asks for."""
    prefix, texts = sources[0]
    try:
        in_a_fresh_process(partial(_try, search, [(prefix, texts[:1])]))
    except (InteropError, EngineError) as error:
        say(f"left out: {name}: {error}")
        return False
    return True


def _try(search: Search, sources: Sources) -> Figures:
    return {SECONDS: search(sources)[0]}


def measure(search: Search, sources: Sources, megabytes: float, ours: Path) -> Figures:
    """The first contender leaves what it finds in the file `ours`, and the others compare what they find with it."""
    seconds, best, lists = search(sources)
    if not ours.exists():
        ours.write_text(json.dumps([best, lists]), encoding="utf-8")
    wanted = json.loads(ours.read_text(encoding="utf-8"))
    equal = {BEST: share_of_equal(wanted[0], best), LISTS: share_of_equal(wanted[1], lists)}
    return {SECONDS: seconds, SPEED: len(best) / seconds, **equal, SIZE: megabytes}


def share_of_equal(wanted: Sequence[object], found: Sequence[object]) -> float:
    """In per cent."""
    return 100 * sum(one == other for one, other in zip(wanted, found, strict=True)) / len(found)


def search_here(folder: Path, sources: Sources, dtype: torch.dtype | None = None) -> Found:
    """With a run, or an export to CTranslate2 or onnxruntime, as `hf-vanilla translate` does."""
    keep_freed_memory()
    torch.set_num_threads(1)
    translator = Translator.from_pretrained(folder, dtype=dtype, device_map="cpu")
    beams = translator.engine.generation_config.num_beams or 1
    (prefix, texts), *_ = sources
    translator.translate(texts[:WARM_UP], prefix=prefix)
    started = time.perf_counter()
    best = [text for prefix, texts in sources for text in translator.translate(texts, prefix=prefix)]
    seconds = time.perf_counter() - started
    lists = [
        [each.text for each in hypotheses]
        for prefix, texts in sources
        for hypotheses in translator.hypotheses(texts, prefix=prefix, num_return_sequences=beams)
    ]
    return seconds, best, lists


def search_in_node(page: Path, sources: Sources) -> Found:
    node = shutil.which("node")
    if node is None:
        raise InteropError("node is not installed: put it on PATH")
    lines = [json.dumps({"parts": text, "prefix": prefix}) for prefix, texts in sources for text in texts]
    command = [node, str(RUNNER), str(page), str(WARM_UP)]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, encoding="utf-8", check=False)  # noqa: S603
    if done.returncode:
        said = re.search(r"^\w*Error: .{1,200}", done.stderr, re.MULTILINE)
        raise InteropError(f"node could not translate with the page ({said[0] if said else 'without a reason'})")
    answer = json.loads(done.stdout)
    return answer["seconds"], [each[0] for each in answer["lists"]], answer["lists"]


def table(rows: Sequence[Row]) -> str:
    """A row for each engine, as a table in Markdown."""
    figures: dict[str, Mapping[str, Row]] = {}
    for row in rows:
        figures[row["contender"]] = {**figures.get(row["contender"], {}), row["figure"]: row}
    lines = [[rows[0]["what"], SIZE, SECONDS, SPEED, "times as fast as the first", BEST, LISTS], ["---"] * 7]
    for name, of in figures.items():
        faster = "{ratio median:.2f} ({ratio lowest:.2f} to {ratio highest:.2f})".format(**of[SECONDS])
        size, seconds, speed, best, lists = (of[key]["median"] for key in (SIZE, SECONDS, SPEED, BEST, LISTS))
        lines.append([name, f"{size:.1f}", f"{seconds:.2f}", f"{speed:,.0f}", faster, f"{best:.1f}", f"{lists:.1f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
