"""Tokenizers lose nothing, cannot be forged, and load without this package."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_vanilla.data.tokenizer import SPECIAL_TOKENS, Encoder, TokenizerKind, train_tokenizer

TEXTS = ["a small dog runs .", "ein kleiner Hund rennt .", "two dogs are running in 2024 !", "zwei Hunde rennen ."] * 5
LOSSLESS: list[TokenizerKind] = ["bpe", "character"]
KINDS: list[TokenizerKind] = [*LOSSLESS, "word"]


def make(kind: TokenizerKind, lowercase: bool = False) -> PreTrainedTokenizerFast:
    return train_tokenizer(TEXTS, kind, vocab_size=350, lowercase=lowercase)


TOKENIZERS = {(kind, lowercase): make(kind, lowercase) for kind in LOSSLESS for lowercase in (False, True)}


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("lowercase", [False, True])
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text())
@example("  two  spaces ")
@example("e\u0301 \u2581x\u0000 \U0001f600 İ ǆ ß")
@example("</s><pad> <0x41> Ġ \r\n\t")
def test_decoding_gives_back_the_normalised_text(kind: TokenizerKind, lowercase: bool, text: str) -> None:
    tokenizer = TOKENIZERS[kind, lowercase]
    ids = tokenizer(text)["input_ids"]
    normalised = tokenizer.backend_tokenizer.normalizer.normalize_str(text)
    assert tokenizer.decode(ids, skip_special_tokens=True) == (normalised if kind == "character" else normalised[1:])
    assert ids[-1] == tokenizer.eos_token_id
    assert not set(ids[:-1]) & set(tokenizer.all_special_ids)


def test_normalising_is_nfc_and_lower_case_if_asked() -> None:
    for kind in LOSSLESS:
        normalize = TOKENIZERS[kind, True].backend_tokenizer.normalizer.normalize_str
        assert normalize("E\u0301T").lstrip() == "\xe9t"
        assert TOKENIZERS[kind, False].backend_tokenizer.normalizer.normalize_str("E\u0301T").lstrip() == "\xc9T"


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_in_text_are_text(kind: TokenizerKind) -> None:
    tokenizer = make(kind)
    text = " ".join([*SPECIAL_TOKENS.values(), "a</s>b", "<pad><pad>"])
    ids = tokenizer(text)["input_ids"][:-1]
    assert not set(ids) & (set(tokenizer.all_special_ids) - {tokenizer.unk_token_id})


def test_ids_of_special_tokens_are_the_configurations_defaults() -> None:
    from hf_vanilla import VanillaConfig

    for kind in KINDS:
        tokenizer, config = make(kind), VanillaConfig()
        for name in ("bos_token_id", "pad_token_id", "eos_token_id"):
            assert getattr(tokenizer, name) == getattr(config, name)


def test_words_are_what_white_space_separates_and_the_rare_are_unknown() -> None:
    tokenizer = train_tokenizer(["a a a b b c"], "word", vocab_size=7)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("b  a c")["input_ids"])
    assert tokens == ["b", "a", "<unk>", "</s>"]


def test_a_tokenizer_of_words_and_characters_from_an_earlier_version_still_works() -> None:
    """Kind "hybrid", made from CMUdict's words and phonemes: it knows frequent words and spells the others."""
    tokenizer = AutoTokenizer.from_pretrained(Path(__file__).parent / "hybrid")
    encoder = Encoder(tokenizer)
    assert encoder.sources([["TÜ", "BATE"]]) == [[261, 266, 200, 161, 4, 261, 263, 262, 266, 264, 2]]
    assert encoder.targets(["AH B EY T"]) == [[272, 270, 268, 269, 2]]
    assert tokenizer.batch_decode(encoder.targets(["AH B EY T", "TÜ"]), skip_special_tokens=True) == ["AH B EY T", "TÜ"]


def test_a_word_has_the_same_tokens_wherever_it_stands() -> None:
    tokenizer = TOKENIZERS["bpe", False]
    first, second = tokenizer("dogs dogs", add_special_tokens=False)["input_ids"][:2]
    assert first == second


def test_numbers_are_spelt_digit_by_digit() -> None:
    tokenizer = train_tokenizer(["2024 2024 2024"] * 50, "bpe", vocab_size=400)
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("2024", add_special_tokens=False)["input_ids"])
    assert tokens[-4:] == ["2", "0", "2", "4"]


def test_saved_tokenizer_loads_without_this_package(tmp_path: Path) -> None:
    tokenizer = TOKENIZERS["bpe", True]
    tokenizer.save_pretrained(tmp_path)
    text = "Ein </s> DOG é 12"
    expected = tokenizer(text)["input_ids"]
    assert AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"] == expected
    code = (
        "import sys; sys.modules['hf_vanilla'] = None\n"
        "from transformers import AutoTokenizer\n"
        f"print(AutoTokenizer.from_pretrained(sys.argv[1])({text!r})['input_ids'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == str(expected)


@pytest.mark.parametrize("kind", LOSSLESS)
def test_parts_of_a_source_are_joined_by_the_separator(kind: TokenizerKind) -> None:
    tokenizer = TOKENIZERS[kind, False]
    (ids,) = Encoder(tokenizer).sources([["run", "<sep>", "dog"]])
    assert ids.count(tokenizer.sep_token_id) == 2
    assert ids[-1] == tokenizer.eos_token_id
    assert tokenizer.decode(ids, skip_special_tokens=True).replace(" ", "") == "run<sep>dog"
