"""How fast a trained model translates with this package, and with transformers and CTranslate2 and the same weights."""

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from ..data.corpus import read_pairs
from ..data.tokenizer import Encoder
from ..inference.translator import Translator
from ..interop.export import export
from ..interop.stock_classes import stock_model_like
from ..memory import keep_freed_memory
from ..models.generation_vanilla import KEYS
from ..run_directory import RECIPE
from ..training.recipe import load_recipe
from .rounds import Figures, Row, measured_rows

SETTINGS: dict[str, dict[str, Any]] = {
    "beam 5, 64 sentences at a time": {"num_beams": 5, "batch_size": 64},
    "greedy, 64 sentences at a time": {"num_beams": 1, "batch_size": 64},
    "beam 5, one sentence at a time": {"num_beams": 5, "batch_size": 1},
}

MAX_TOKENS = 65_536  # of a batch, for our `Translator`


def compare_generation(run: Path, sentences: int, rounds: int) -> list[Row]:
    """
    Sentences of the test set per second, and how many translations are the same as the first contender's.

    The first contender is the plain search, so that "first / this" of the others of ours is what it costs to ask for
    more: for scores, for several translations of each sentence, for translations that begin with given tokens.
    """
    recipe = load_recipe(run / RECIPE)
    sources = [pair.source for pair in read_pairs(recipe.data.test or recipe.data.validation)][:sentences]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for what, options in SETTINGS.items():
            measure = partial(translate, run, sources, Path(folder), **options)
            contenders: dict[str, Callable[[], Figures]] = {
                "hf_vanilla": partial(measure, keeps_memory=True),
                "transformers": partial(measure, by_peer=True),
                "transformers, freed memory kept": partial(measure, by_peer=True, keeps_memory=True),
            }
            if options["batch_size"] > 1:
                contenders |= what_costs_more(partial(measure, keeps_memory=True), options["num_beams"])
            rows += measured_rows(what, contenders, rounds)
        measure = partial(translate_lines, run, sources, Path(folder))
        contenders = {"hf_vanilla, bfloat16": partial(measure, torch.bfloat16)}
        contenders |= {"hf_vanilla, float32": partial(measure, torch.float32)}
        if find_spec("ctranslate2"):
            contenders["CTranslate2, float32"] = measure
        rows += measured_rows("lines to lines, beam 5", contenders, rounds)
    return rows


def what_costs_more(measure: Callable[..., Figures], num_beams: int) -> dict[str, Callable[[], Figures]]:
    """Contenders that ask our search for more than a translation."""
    contenders = {"with scores": partial(measure, return_sequence_scores=True)}
    if num_beams > 1:
        several = partial(measure, return_sequence_scores=True, num_return_sequences=num_beams)
        contenders[f"{num_beams} best with scores"] = several
    contenders["3 tokens given"] = partial(measure, beginning=three_tokens)
    contenders["first halves given"] = partial(measure, beginning=first_half)
    return {f"hf_vanilla, {what}": contender for what, contender in contenders.items()}


@torch.no_grad()
def translate(
    run: Path,
    sources: Sequence[Sequence[str]],
    texts: Path,
    num_beams: int,
    batch_size: int,
    by_peer: bool = False,
    keeps_memory: bool = False,
    beginning: Callable[[list[int]], list[int]] | None = None,
    **more: Any,
) -> Figures:
    """
    Measure `generate()` on batches of sentences of about the same length.

    The first contender writes its translations to the folder `texts`, the others compare theirs with these.

    Args:
        beginning: Which tokens of the first contender's targets are given.
        more: Further arguments of `generate()`.
    """
    if keeps_memory:  # as `hf-vanilla translate` does
        keep_freed_memory()
    model = with_the_search_of_transformers(AutoModelForSeq2SeqLM.from_pretrained(run).eval())
    if by_peer:
        model = stock_model_like(model)
    tokenizer = AutoTokenizer.from_pretrained(run)
    ids = sorted(Encoder(tokenizer).sources(sources), key=len)
    batches = [
        tokenizer.pad({"input_ids": ids[start : start + batch_size]}, return_tensors="pt")
        for start in range(0, len(ids), batch_size)
    ]
    file = texts / f"{num_beams} {batch_size}.json"
    tokens = file.with_suffix(".tokens.json")
    if beginning:
        prefixes = [beginning(target) for target in json.loads(tokens.read_text())]
        for number, batch in enumerate(batches):
            of_batch = prefixes[number * batch_size : (number + 1) * batch_size]
            batch.update(padded_left(of_batch, tokenizer.pad_token_id))
    model.generate(**batches[0], num_beams=num_beams, **more)
    found: list[list[int]] = []
    started = time.perf_counter()
    for batch in batches:
        outputs = model.generate(**batch, num_beams=num_beams, **more)
        targets = outputs if isinstance(outputs, Tensor) else outputs.sequences
        found += targets[:: more.get("num_return_sequences", 1)].tolist()
    seconds = time.perf_counter() - started
    if not tokens.exists():
        special = (tokenizer.pad_token_id, tokenizer.eos_token_id)
        tokens.write_text(json.dumps([[token for token in target if token not in special] for target in found]))
    return _figures(tokenizer.batch_decode(found, skip_special_tokens=True), seconds, file)


def three_tokens(target: list[int]) -> list[int]:
    """After the start token."""
    return target[:4]


def first_half(target: list[int]) -> list[int]:
    return target[: 1 + len(target) // 2]


def padded_left(prefixes: list[list[int]], padding: int) -> dict[str, Tensor]:
    """As `generate()` takes them, with a mask only where they are of different lengths."""
    longest = max(map(len, prefixes))
    given = {"decoder_input_ids": torch.tensor([[padding] * (longest - len(ids)) + ids for ids in prefixes])}
    if min(map(len, prefixes)) < longest:
        mask = [[0] * (longest - len(ids)) + [1] * len(ids) for ids in prefixes]
        given["decoder_attention_mask"] = torch.tensor(mask)
    return given


def translate_lines(
    run: Path, sources: Sequence[Sequence[str]], texts: Path, dtype: torch.dtype | None = None
) -> Figures:
    """Measure our `Translator` in this dtype, or its engine of CTranslate2 in float32 if there is none."""
    keep_freed_memory()
    if dtype:
        model = with_the_search_of_transformers(AutoModelForSeq2SeqLM.from_pretrained(run, dtype=dtype))
        translator = Translator(model, AutoTokenizer.from_pretrained(run), MAX_TOKENS)
    else:
        if not (texts / "ctranslate2").exists():
            export(run, "ctranslate2", texts / "ctranslate2")
        translator = Translator.from_pretrained(texts / "ctranslate2", max_tokens=MAX_TOKENS)
        with_the_search_of_transformers(translator.engine)
    lines_to_lines: Any = partial(translator.translate, num_beams=5)
    lines_to_lines(sources[:64])
    started = time.perf_counter()
    translations = lines_to_lines(sources)
    return _figures(translations, time.perf_counter() - started, texts / "lines.json")


def with_the_search_of_transformers(model: Any) -> Any:
    """Remove the generation options that transformers does not know."""
    model.generation_config.update(**dict.fromkeys(KEYS))
    return model


def _figures(translations: list[str], seconds: float, first: Path) -> Figures:
    if not first.exists():
        first.write_text(json.dumps(translations))
    same = sum(text == other for text, other in zip(translations, json.loads(first.read_text()), strict=True))
    return {"sentences per second": len(translations) / seconds, "texts as the first": same}
