"""What is saved loads elsewhere: tokenizers under a name that all versions know, weights that others may read."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from hf_vanilla import VanillaForConditionalGeneration
from hf_vanilla.data.existing_tokenizer import load_tokenizer, with_tokens
from hf_vanilla.data.saved_tokenizer import PreTrainedTokenizerFast
from hf_vanilla.data.tokenizer import Columns, train_tokenizer

TEXTS = ["Ein Haus, 42 Häuser.", "a few words <s> </s>", " two  spaces ", "ß 東京"]
KINDS = ("bpe", "character", "word")


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lowercase", [False, True])
def test_a_tokenizer_is_the_same_bytes_however_often_it_is_saved(kind: str, lowercase: bool, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TEXTS, kind, 400, lowercase, Columns(), prefixes=["<2de>"])  # type: ignore[arg-type]
    tokenizer.save_pretrained(tmp_path / "0")
    for number in range(3):
        tokenizer(TEXTS, padding=True, truncation=True, max_length=5 + number)
        tokenizer.save_pretrained(tmp_path / f"{number + 1}")
        assert files_of(tmp_path / f"{number + 1}") == files_of(tmp_path / "0")
        tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / f"{number + 1}")
    settings = json.loads((tmp_path / "0" / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert not settings.keys() & {"auto_map", "is_local", "local_files_only", "name_or_path", "tokenizer_file"}


@pytest.mark.parametrize("kind", KINDS)
def test_all_classes_load_the_same_tokenizer(kind: str, tmp_path: Path) -> None:
    """The oracle is the library below, which knows nothing of classes."""
    tokenizer = train_tokenizer(TEXTS, kind, 400)  # type: ignore[arg-type]
    tokenizer.save_pretrained(tmp_path)
    bare = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    bare.encode_special_tokens = True
    expected = [bare.encode(text).ids for text in TEXTS]
    for loaded in (
        tokenizer,
        PreTrainedTokenizerFast.from_pretrained(tmp_path),
        AutoTokenizer.from_pretrained(tmp_path),
    ):
        assert loaded(TEXTS)["input_ids"] == expected
        found = loaded.batch_decode(expected, skip_special_tokens=True)
        assert found == [bare.decode(ids) for ids in expected]
        assert kind == "word" or found == TEXTS


def test_a_tokenizer_of_others_is_saved_so_too(tmp_path: Path) -> None:
    train_tokenizer(TEXTS, "bpe", 400).save_pretrained(tmp_path / "theirs")
    taken = with_tokens(load_tokenizer(tmp_path / "theirs"), Columns(), [], ["<2de>"])
    taken.save_pretrained(tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "tokenizer_config.json").read_text())["tokenizer_class"] == (
        "PreTrainedTokenizerFast"
    )


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_whoever_may_read_the_configuration_may_read_the_weights(
    umask: int, make_model: Callable[..., VanillaForConditionalGeneration], tmp_path: Path
) -> None:
    before = os.umask(umask)
    try:
        make_model().save_pretrained(tmp_path / "whole")
        make_model().save_pretrained(tmp_path / "parts", max_shard_size="8KB")
    finally:
        os.umask(before)
    files = [*(tmp_path / "whole").iterdir(), *(tmp_path / "parts").iterdir()]
    assert len([file for file in files if file.suffix == ".safetensors"]) > 2
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o666 & ~umask}


def test_no_file_that_is_saved_can_run_when_it_is_read(
    make_model: Callable[..., VanillaForConditionalGeneration], tmp_path: Path
) -> None:
    make_model().save_pretrained(tmp_path)
    train_tokenizer(TEXTS, "character").save_pretrained(tmp_path)
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".safetensors", ".py"}
