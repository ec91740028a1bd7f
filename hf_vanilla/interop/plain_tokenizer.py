"""A tokenizer beside weights, as every version of transformers loads it."""

import json
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from ..run_directory import TOKENIZER_CONFIG


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Version 4 of transformers does not know the class that version 5 names."""
    tokenizer.save_pretrained(folder)
    file = folder / TOKENIZER_CONFIG
    settings = json.loads(file.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    file.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
