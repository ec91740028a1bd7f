"""Lines to lines, on the device that there is."""

from pathlib import Path

import pytest
import torch

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.data.tokenizer import train_tokenizer
from hf_vanilla.inference.translator import Translator


@pytest.fixture
def run(tmp_path: Path) -> Path:
    tokenizer = train_tokenizer(["a few words"], "character")
    sizes = {"d_model": 8, "num_heads": 2, "d_ff": 8, "encoder_layers": 1, "decoder_layers": 1}
    VanillaForConditionalGeneration(VanillaConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_nothing_to_translate(run: Path) -> None:
    assert Translator.from_pretrained(run).translate([]) == []


def test_a_model_goes_to_the_accelerator_unless_told_where(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    assert Translator.from_pretrained(run).model.device.type == "meta"
    assert Translator.from_pretrained(run, device_map="cpu").model.device.type == "cpu"


def test_a_source_that_is_too_long_for_learned_positions_is_named(run: Path) -> None:
    translator = Translator.from_pretrained(run)
    config = VanillaConfig(
        **translator.model.config.to_diff_dict() | {"position_embedding_type": "learned", "max_position_embeddings": 8}
    )
    translator = Translator(VanillaForConditionalGeneration(config).eval(), translator.tokenizer)
    with pytest.raises(InvalidDataError, match="source 2 has 9 tokens, more than the 8 positions"):
        translator.translate([["a"], ["few word"]])
