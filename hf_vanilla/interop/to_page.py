"""
A page that translates in the browser of its reader, without a server: the ONNX graphs, the search and the tokenizer in
JavaScript, and onnxruntime-web as the engine, all in one folder. Nothing is loaded from elsewhere.
"""

import json
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from ..inference.alignments import AttentionMap
from ..inference.onnx_engine import check_search
from ..inference.onnx_search import USUAL_NEW_TOKENS, Search
from ..inference.translator import MAX_SOURCE_LENGTH
from ..pages import rendered
from ..run_directory import ALIGNMENT, CARD
from ..translation_page import WIDTHS, TranslationPage
from .errors import InteropError
from .page_engine import add_engine
from .page_tokenizer import for_page
from .to_onnx import QUANTIZATIONS, write_graphs
from .usual_search import refuse_other_searches

FOLDER = "page"  # of what an export has beside what all pages of translations have
SCRIPT = "in_browser.mjs"
COMMON = (SCRIPT, "model.mjs", "search.mjs", "tokenizer.mjs")
WHILE_LOADING = (
    "Loading. If this text stays, the page was opened as a file, from which browsers load no programs: run "
    "`python -m http.server` in its folder, and open http://localhost:8000."
)
ABOUT = "This page translates in your browser. What you write does not leave it."
SETTINGS, VOCABULARY = "settings.json", "vocabulary.json"
SIZES = ("vocab_size", "decoder_layers", "num_heads", "d_kv", "d_v", "decoder_start_token_id")


def export(
    run: Path,
    output: Path,
    *,
    engine: Path | None = None,
    quantization: str | None = None,
    title: str | None = None,
) -> None:
    """
    Write the page of a run into an empty folder.

    Args:
        engine: The folder of the npm package onnxruntime-web; if not given, npm downloads it.
        quantization: "int8" for weights of a byte each, unless "float32" is given.
        title: Of the page; the name of the directory if not given.
    """
    quantization = quantization or "int8"
    if quantization not in QUANTIZATIONS:
        raise InteropError(f"quantization {quantization!r}: --to page has {' and '.join(QUANTIZATIONS)}")
    model = AutoModelForSeq2SeqLM.from_pretrained(run, dtype=torch.float32).eval()
    refuse_other_searches(check_search, model.generation_config)
    tokenizer = AutoTokenizer.from_pretrained(run)
    write_page(model, tokenizer, output, title=title or run.resolve().name, in_eight_bits=quantization == "int8")
    add_engine(output, engine)


def write_page(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, output: Path, title: str, in_eight_bits: bool = True
) -> None:
    """All of the page but its engine."""
    vocabulary, settings = for_page(tokenizer), settings_of(model)
    write_graphs(model, output, in_eight_bits)
    (output / SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
    (output / VOCABULARY).write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    page = TranslationPage(
        title=title,
        script=SCRIPT,
        about=ABOUT,
        columns=len(vocabulary["columns"]["source"]),
        widths=widths(settings),
        width=settings["num_beams"],
        prefixes=vocabulary["prefixes"],
        may_run="'wasm-unsafe-eval'",
        while_loading=WHILE_LOADING,
    )
    own = files(__package__) / FOLDER
    texts = {name: (own / name).read_text(encoding="utf-8") for name in COMMON}
    card = rendered((own / CARD).read_text(encoding="utf-8"), quoted=json.dumps(title)) + "\n"
    for name, text in {**page.files(), **texts, CARD: card}.items():
        (output / name).write_text(text, encoding="utf-8")


def settings_of(model: PreTrainedModel) -> dict[str, Any]:
    """What the search and the picture follow. Whatever else the generation config asks for is refused by name."""
    config: Any = model.config
    sizes = {name: getattr(config, name) for name in SIZES}
    positions = getattr(config, "max_position_embeddings", None)
    own = model.generation_config.to_dict()
    search = Search.of(own | {"decoder_start_token_id": sizes["decoder_start_token_id"]}, {"num_return_sequences": 1})
    chosen = own.get(ALIGNMENT)
    layer = sizes["decoder_layers"] - 1
    attention = AttentionMap(chosen["layer"], chosen["head"], chosen["row"]) if chosen else AttentionMap(layer)
    return (
        sizes
        | asdict(search)
        | {
            "positions": positions,
            "max_source_length": min(MAX_SOURCE_LENGTH, positions or MAX_SOURCE_LENGTH),
            "usual_new_tokens": USUAL_NEW_TOKENS,
            "attention": asdict(attention),
        }
    )


def widths(settings: dict[str, Any]) -> list[int]:
    """Of the beam, to choose from: there must be enough tokens to go on with."""
    ends = len(settings["eos_token_id"])
    most = settings["vocab_size"] // (1 + ends) - 2
    return sorted({width for width in (*WIDTHS, settings["num_beams"]) if width == 1 or width <= most})
