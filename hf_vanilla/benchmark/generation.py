"""How fast a trained run translates: this package, and the class of transformers with the same weights."""

import json
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from ..data.corpus import read_pairs
from ..data.tokenizer import Encoder
from ..memory import keep_freed_memory
from ..training.recipe import load_recipe
from .peers import peer_with_the_weights_of
from .rounds import Figures, Row, measured_rows

SETTINGS: dict[str, dict[str, Any]] = {
    "beam 5, 64 sentences at a time": {"num_beams": 5, "batch_size": 64},
    "greedy, 64 sentences at a time": {"num_beams": 1, "batch_size": 64},
    "beam 5, one sentence at a time": {"num_beams": 5, "batch_size": 1},
}


def compare_generation(run: Path, sentences: int, rounds: int) -> list[Row]:
    """Sentences of the test set per second, and how many texts are the same."""
    recipe = load_recipe(run / "recipe.yaml")
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
    """By `generate()` alone, in batches of sentences of like length. The first contender's texts are kept."""
    if keeps_memory:  # as all of our commands do
        keep_freed_memory()
    model = AutoModelForSeq2SeqLM.from_pretrained(run).eval()
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
    file = texts / f"{num_beams} {batch_size}.json"
    if not file.exists():
        file.write_text(json.dumps(translations))
    same = sum(text == other for text, other in zip(translations, json.loads(file.read_text()), strict=True))
    return {"sentences per second": len(ids) / seconds, "texts as the first": same}
