"""Exports as engines: which engine runs a folder that `hf-vanilla export` wrote."""

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from ..data.existing_tokenizer import refuse_crashes
from ..manifest import MANIFEST, ManifestError, verify_foreign
from ..run_directory import CARD, MODEL_CONFIG, TOKENIZER
from ..weights import check_tokenizer, refuse_huge_searches
from .ctranslate2_engine import load_ctranslate2_engine
from .engine import Engine
from .onnx_engine import load_onnx_engine

ENGINES: dict[str, Callable[[Path, torch.dtype | str | None, str | None], Engine]] = {
    "ctranslate2": load_ctranslate2_engine,
    "onnx": load_onnx_engine,
}


def is_export(folder: str | Path) -> bool:
    return (Path(folder) / MANIFEST).is_file() and (Path(folder) / MODEL_CONFIG).is_file()


def load_export(
    folder: Path, dtype: torch.dtype | str | None = None, device_map: str | None = None
) -> tuple[Engine, PreTrainedTokenizerFast, int]:
    """The engine of an export, its tokenizer, and the number of columns of its sources."""
    facts = verify_foreign(folder, besides=[CARD])
    load = ENGINES.get(str(facts.get("format")))
    if load is None:
        raise ManifestError(f"{folder} is an export to {facts.get('format')}, which no engine of ours runs")
    columns = facts.get("columns")
    if not isinstance(columns, int) or columns < 1:
        raise ManifestError(f"{folder / MANIFEST}: columns: {columns!r:.40} must be a number from 1 on")
    refuse_huge_searches(folder)
    refuse_crashes(folder / TOKENIZER)
    engine, tokenizer = load(folder, dtype, device_map), PreTrainedTokenizerFast.from_pretrained(folder)
    check_tokenizer(folder, tokenizer, engine.vocab_size)
    return engine, tokenizer, columns
