"""What tests of inspection share: tiny random models that decide clearly, with a tokenizer of characters and bytes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.data.tokenizer import Columns, train_tokenizer
from hf_vanilla.inference.translator import Translator

LETTERS = ["a few words", "ABCDEFGHIJKLMNOPQRSTUVWXYZ bcghijklmnpqtuvxyz ,."]

MakeTranslator = Callable[..., Translator]


@pytest.fixture
def make_translator(make_model: Callable[..., Model]) -> MakeTranslator:
    """`make_translator(columns, **changes)`: some targets end early, and no search hangs on rounding."""

    def make(columns: int = 1, **changes: object) -> Translator:
        tokenizer = train_tokenizer(LETTERS, "character", columns=Columns((None,) * columns))
        model = make_model(vocab_size=len(tokenizer), tie_word_embeddings=False, **changes)
        with torch.no_grad():
            output = model.lm_head.weight
            output.mul_(1.5)
            output[: 5 + 256] = 0  # special tokens, and bytes: no text
            often = tokenizer.convert_tokens_to_ids(list("XYBeaLs"))
            output[tokenizer.eos_token_id] = 0.4 * output[often].sum(0)
        model.generation_config.update(max_length=24, num_beams=3)
        return Translator(model, tokenizer)

    return make


@pytest.fixture
def run(make_translator: MakeTranslator, tmp_path: Path) -> Path:
    """A directory with such a model, as a training leaves it."""
    translator = make_translator()
    translator.model.save_pretrained(tmp_path / "run")
    translator.tokenizer.save_pretrained(tmp_path / "run")
    return tmp_path / "run"
