"""Tokens belong to the words and characters that they were made of, however a text was segmented."""

import pytest
from transformers import PreTrainedTokenizerFast

from hf_vanilla.data.tokenizer import Encoder, train_tokenizer
from hf_vanilla.inference import units
from hf_vanilla.inference.units import Membership, members_of_source, members_of_target, unit_for

TEXTS = ["the dog and the cat in the street", "a street dog", "das wetter in der straße 1984-05-23", "£305 und 😀"]


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    return {kind: train_tokenizer(TEXTS, kind, 300) for kind in ("bpe", "character", "word")}


def tokens_of(tokenizer: PreTrainedTokenizerFast, ids: list[int], members: Membership) -> list[list[str]]:
    """The tokens of each unit."""
    words: list[list[str]] = [[] for _ in range(members.number)]
    for token, unit in zip(members.tokens, members.units, strict=True):
        words[unit].append(tokenizer.convert_ids_to_tokens([ids[token]])[0])
    return words


def of_text(tokenizer: PreTrainedTokenizerFast, text: str, unit: units.Unit) -> list[list[str]]:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return tokens_of(tokenizer, ids, members_of_target(tokenizer, text, ids, unit))


def test_a_word_has_its_pieces(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    assert of_text(tokenizers["character"], " dog  cat ", "word") == [["d", "o", "g"], ["c", "a", "t"]]
    pieces = of_text(tokenizers["bpe"], "the streets", "word")
    assert pieces[0] == ["Ġthe"]
    assert "".join(pieces[1]) == "Ġstreets"
    assert len(pieces[1]) > 1


def test_the_space_that_is_put_in_front_is_no_part_of_the_first_character(
    tokenizers: dict[str, PreTrainedTokenizerFast],
) -> None:
    assert of_text(tokenizers["bpe"], "19-0", "character") == [["1"], ["9"], ["-"], ["0"]]


def test_white_space_has_no_tokens(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    for kind in ("bpe", "character"):
        found = of_text(tokenizers[kind], "a \tdog", "character")
        assert [bool(tokens) for tokens in found] == [True, False, False, True, True, True]


@pytest.mark.parametrize("kind", ["bpe", "character"])
def test_all_bytes_of_a_character_belong_to_it(kind: str, tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    found = of_text(tokenizers[kind], "x字🙂y", "character")
    numbers = [len(tokens) for tokens in found]
    assert numbers == [1, 3, 4, 1] or kind == "bpe"
    assert (numbers[0], numbers[3]) == (1, 1)
    assert min(numbers[1:3]) > 1


@pytest.mark.parametrize("kind", ["bpe", "character", "word"])
@pytest.mark.parametrize("unit", ["word", "character"])
def test_decoding_finds_the_same_as_the_tokenizer_says(
    kind: str, unit: units.Unit, tokenizers: dict[str, PreTrainedTokenizerFast], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*TEXTS[:3], "cat  in street"] if kind != "word" else TEXTS[:3]
    said = [of_text(tokenizers[kind], text, unit) for text in texts]
    monkeypatch.setattr(units, "spans_of", units._spans_by_decoding)
    assert [of_text(tokenizers[kind], text, unit) for text in texts] == said


def test_a_word_that_is_segmented_in_another_way_has_all_its_pieces(
    tokenizers: dict[str, PreTrainedTokenizerFast],
) -> None:
    tokenizer = tokenizers["bpe"]
    ids = tokenizer.convert_tokens_to_ids(["Ġ", "d", "o", "g", "Ġ", "Ã", "Ł", "Ġa"])
    members = members_of_target(tokenizer, "dog ß a", ids, "word")
    assert tokens_of(tokenizer, ids, members) == [["d", "o", "g"], ["Ã", "Ł"], ["Ġa"]]


def test_words_are_counted_through_all_parts_and_separators_are_outside(
    tokenizers: dict[str, PreTrainedTokenizerFast],
) -> None:
    tokenizer, source = tokenizers["character"], ("a dog", "cat")
    (ids,) = Encoder(tokenizer).sources([source])
    members = members_of_source(tokenizer, source, ids, "word")
    assert tokens_of(tokenizer, ids, members) == [["a"], ["d", "o", "g"], ["c", "a", "t"]]
    outside = [
        token for token, is_in in zip(tokenizer.convert_ids_to_tokens(ids), members.inside, strict=True) if not is_in
    ]
    assert outside == [" ", "<sep>", "</s>"]
    characters = members_of_source(tokenizer, source, ids, "character")
    assert "".join("_".join(tokens) or "|" for tokens in tokens_of(tokenizer, ids, characters)) == "a|dog|cat"


def test_a_prefix_belongs_to_no_word(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    for kind in ("bpe", "character"):
        tokenizer = tokenizers[kind]
        plain, prefixed = Encoder(tokenizer).sources([("the dog", "a cat"), ("das wetter: the dog", "a cat")])
        without = members_of_source(tokenizer, ("the dog", "a cat"), plain, "word")
        members = members_of_source(tokenizer, ("the dog", "a cat"), prefixed, "word")
        assert tokens_of(tokenizer, prefixed, members) == tokens_of(tokenizer, plain, without)


def test_texts_without_white_space_are_counted_in_characters() -> None:
    assert unit_for(["1984-05-23", "£305", "two words"]) == "character"
    assert unit_for(["a dog", "two words", "hello"]) == "word"
