"""How fast a trained model translates with this package, and with transformers and CTranslate2 and the same weights."""

import json
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from ..data.corpus import read_pairs
from ..data.tokenizer import Encoder
from ..inference.translator import Translator
from ..memory import keep_freed_memory
from ..models.generation_vanilla import KEYS
from ..run_directory import RECIPE
from ..training.recipe import load_recipe
from .peers import ctranslate2_with_the_weights_of, peer_with_the_weights_of
from .rounds import Figures, Row, measured_rows

SETTINGS: dict[str, dict[str, Any]] = {
    "beam 5, 64 sentences at a time": {"num_beams": 5, "batch_size": 64},
    "greedy, 64 sentences at a time": {"num_beams": 1, "batch_size": 64},
    "beam 5, one sentence at a time": {"num_beams": 5, "batch_size": 1},
}

MAX_TOKENS = 65_536  # of a batch, for our `Translator`
MAX_SOURCE_TOKENS = 2_000  # of a batch, for CTranslate2: in larger batches there would be none for some of its threads


def compare_generation(run: Path, sentences: int, rounds: int) -> list[Row]:
    """Sentences of the test set per second, and how many translations are the same as the first contender's."""
    recipe = load_recipe(run / RECIPE)
    sources = [pair.source for pair in read_pairs(recipe.data.test or recipe.data.validation)][:sentences]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for what, options in SETTINGS.items():
            measure = partial(translate, run, sources, Path(folder), **options)
            contenders = {
                "hf_vanilla": partial(measure, keeps_memory=True),
                "transformers": partial(measure, by_peer=True),
                "transformers, freed memory kept": partial(measure, by_peer=True, keeps_memory=True),
            }
            rows += measured_rows(what, contenders, rounds)
        measure = partial(translate_lines, run, sources, Path(folder))
        contenders = {"hf_vanilla, bfloat16": partial(measure, torch.bfloat16)}
        contenders |= {"hf_vanilla, float32": partial(measure, torch.float32)}
        if find_spec("ctranslate2"):
            contenders["CTranslate2, float32"] = measure
        rows += measured_rows("lines to lines, beam 5", contenders, rounds)
    return rows


@torch.no_grad()
def translate(
    run: Path,
    sources: Sequence[Sequence[str]],
    texts: Path,
    num_beams: int,
    batch_size: int,
    by_peer: bool = False,
    keeps_memory: bool = False,
) -> Figures:
    """
    Measure `generate()` on batches of sentences of about the same length.

    The first contender writes its translations to the folder `texts`, the others compare theirs with these.
    """
    if keeps_memory:  # as `hf-vanilla translate` does
        keep_freed_memory()
    model = with_the_search_of_transformers(AutoModelForSeq2SeqLM.from_pretrained(run).eval())
    if by_peer:
        model = peer_with_the_weights_of(model)
    tokenizer = AutoTokenizer.from_pretrained(run)
    ids = sorted(Encoder(tokenizer).sources(sources), key=len)
    batches = [
        tokenizer.pad({"input_ids": ids[start : start + batch_size]}, return_tensors="pt")
        for start in range(0, len(ids), batch_size)
    ]
    model.generate(**batches[0], num_beams=num_beams)
    found = []
    started = time.perf_counter()
    for batch in batches:
        found += model.generate(**batch, num_beams=num_beams).tolist()
    seconds = time.perf_counter() - started
    translations = tokenizer.batch_decode(found, skip_special_tokens=True)
    return _figures(translations, seconds, texts / f"{num_beams} {batch_size}.json")


def translate_lines(
    run: Path, sources: Sequence[Sequence[str]], texts: Path, dtype: torch.dtype | None = None
) -> Figures:
    """Measure our `Translator` in this dtype, or CTranslate2 if there is none, each with batches that suit it."""
    keep_freed_memory()
    if dtype:
        model = with_the_search_of_transformers(AutoModelForSeq2SeqLM.from_pretrained(run, dtype=dtype))
        translator = Translator(model, AutoTokenizer.from_pretrained(run), MAX_TOKENS)
        lines_to_lines: Any = partial(translator.translate, num_beams=5)
    else:
        lines_to_lines = partial(_translate_by_ctranslate2, *_load_for_ctranslate2(run, texts / "ctranslate2"))
    lines_to_lines(sources[:64])
    started = time.perf_counter()
    translations = lines_to_lines(sources)
    return _figures(translations, time.perf_counter() - started, texts / "lines.json")


def with_the_search_of_transformers(model: PreTrainedModel) -> PreTrainedModel:
    """Remove the generation options that transformers does not know."""
    model.generation_config.update(**dict.fromkeys(KEYS))
    return model


def _load_for_ctranslate2(run: Path, folder: Path) -> tuple[Any, PreTrainedTokenizerFast, dict[str, Any]]:
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(run).eval(), AutoTokenizer.from_pretrained(run)
    search = model.generation_config
    options = {"length_penalty": search.length_penalty or 1.0, "max_decoding_length": search.max_length - 1}
    return ctranslate2_with_the_weights_of(model, tokenizer, folder), tokenizer, options


def _translate_by_ctranslate2(
    translator: Any,
    tokenizer: PreTrainedTokenizerFast,
    options: dict[str, Any],
    sources: Sequence[Sequence[str]],
) -> list[str]:
    tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in Encoder(tokenizer).sources(sources)]
    options = {"beam_size": 5, "max_batch_size": MAX_SOURCE_TOKENS, "batch_type": "tokens"} | options
    found = translator.translate_batch(tokens, **options)
    best = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in found]
    return tokenizer.batch_decode(best, skip_special_tokens=True)


def _figures(translations: list[str], seconds: float, first: Path) -> Figures:
    if not first.exists():
        first.write_text(json.dumps(translations))
    same = sum(text == other for text, other in zip(translations, json.loads(first.read_text()), strict=True))
    return {"sentences per second": len(translations) / seconds, "texts as the first": same}
