"""What reading, encoding, sorting and decoding lines cost beside the search: `translate` against `generate()`."""

import io
import time
from collections.abc import Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from ..data.corpus import read_pairs
from ..inference.batching import batches_by_length, mask_of, padded
from ..inference.lines import Line, as_line, size_of, texts_of, windows
from ..inference.translator import Translator
from ..memory import keep_freed_memory, leave_out_of_collections
from ..run_directory import RECIPE
from ..training.recipe import load_recipe
from .rounds import Figures, Row, measured_rows


def compare_lines(run: Path, lines: int, rounds: int, dtype: str) -> list[Row]:
    """Lines per second, from bytes to bytes, and of `generate()` alone on the batches that these lines make."""
    recipe = load_recipe(run / RECIPE)
    pairs = read_pairs(recipe.data.test or recipe.data.validation)
    sources = list(islice(cycle(["\t".join(pair.source) for pair in pairs]), lines))
    contenders = {
        "translate": partial(from_bytes_to_bytes, run, sources, dtype),
        "generate() on the same batches": partial(generate_alone, run, sources, dtype),
    }
    return measured_rows(f"{lines:,} lines, {dtype}", contenders, rounds)


def from_bytes_to_bytes(run: Path, sources: Sequence[str], dtype: str) -> Figures:
    """As the command does it, without loading the model."""
    keep_freed_memory()
    translator = Translator.from_pretrained(run, dtype=getattr(torch, dtype))
    source = io.BytesIO("".join(f"{text}\n" for text in sources).encode())
    leave_out_of_collections()
    translator.translate(sources[:64])
    started, written, first = time.perf_counter(), io.BytesIO(), 1
    for window in windows(source, len):
        numbered = enumerate(texts_of(window, "source", first), first)
        batch = [Line(number, translator.columns_of(text, number)) for number, text in numbered]
        for best, *_ in translator.search(batch):
            written.write(as_line(best.text).encode() + b"\n")
        first += len(window)
    return {"lines per second": len(sources) / (time.perf_counter() - started)}


@torch.no_grad()
def generate_alone(run: Path, sources: Sequence[str], dtype: str) -> Figures:
    """`generate()` on tensors that are there already."""
    keep_freed_memory()
    model = AutoModelForSeq2SeqLM.from_pretrained(run, dtype=getattr(torch, dtype)).eval()
    tokenizer = AutoTokenizer.from_pretrained(run)
    translator = Translator(model, tokenizer)
    numbered = enumerate(sources, 1)
    batches: list[dict[str, Any]] = []
    for window in windows((Line(number, translator.columns_of(text, number)) for number, text in numbered), size_of):
        ids = translator.encode_batch([line.parts for line in window])
        most = translator.max_tokens // (model.generation_config.num_beams or 1)
        for places in batches_by_length([len(row) for row in ids], most):
            rows = [ids[place] for place in places]
            inputs = padded(rows, tokenizer.pad_token_id, model.device)
            batches.append({"input_ids": inputs, "attention_mask": mask_of(rows, model.device)})
    model.generate(**batches[-1])
    started = time.perf_counter()
    for batch in batches:
        model.generate(**batch)
    return {"lines per second": len(sources) / (time.perf_counter() - started)}
