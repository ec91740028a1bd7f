"""Symbols are one token each where a column says so and nowhere else, and every column comes back as it was."""

import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hf_vanilla.data.corpus import Pair
from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.data.tokenizer import (
    Columns,
    Encoder,
    TokenizerKind,
    content_of_token,
    symbols_in,
    texts_in,
    train_tokenizer,
)

KINDS: list[TokenizerKind] = ["bpe", "character", "word"]
LEMMAS = ["see a dog", "PST V", ";V;PST", "sees ; PST ;V", " AH B", "the the the"]
SEPARATORS = [";", " ", "::", "é", "\n+", "<", "<s>", "Ġ", "| "]
SYMBOLS = ["V", "PST", "V.PTCP", "ü", "see", "", "s>", "0x41>", "<pad>", "</s>", " ", "12", "\u017f", "Ö B"]


def tokenizer_of(kind: TokenizerKind, columns: Columns, symbols: list[str] = SYMBOLS) -> PreTrainedTokenizerFast:
    """Trained on lemmas and symbols, in columns of the one kind or the other, lower-cased where that has an effect."""
    separators = *columns.source, columns.target
    pairs = []
    for lemma in LEMMAS * 3:
        texts = [lemma if separator is None else separator.join(symbols) for separator in separators]
        pairs.append(Pair(tuple(texts[:-1]), texts[-1], ""))
    known = symbols_in(pairs, columns)
    return train_tokenizer(texts_in(pairs, columns), kind, 340, True, columns, known, ["<2de>", "to German: "])


TOKENIZERS = {
    (kind, separator): tokenizer_of(kind, Columns((None, separator), separator))
    for kind in KINDS
    for separator in SEPARATORS
}
words_and_separators = st.lists(st.sampled_from([*SYMBOLS, *SEPARATORS, "unseen", "E\u0301"]), max_size=8).map("".join)
anything = st.text(max_size=30) | words_and_separators


def decoded(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    return tokenizer.batch_decode([ids], skip_special_tokens=True)[0]


@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("kind", ["bpe", "character"])
@settings(max_examples=120, deadline=None, derandomize=True)
@given(anything)
@example("")
@example(";")
@example(";;V;; PST;")
@example("::V::::PST:")
@example("</s> <0x41> <pad>")
@example(" V PST ")
def test_targets_of_symbols_come_back_as_they_were(kind: TokenizerKind, separator: str, text: str) -> None:
    """Also those that are not known, are empty, or look like something else, and in capitals."""
    tokenizer = TOKENIZERS[kind, separator]
    (ids,) = Encoder(tokenizer).targets([text])
    assert decoded(tokenizer, ids) == unicodedata.normalize("NFC", text)
    assert not set(ids[:-1]) & set(tokenizer.all_special_ids)


@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_known_symbol_is_one_token_wherever_it_stands(kind: TokenizerKind, separator: str) -> None:
    tokenizer = TOKENIZERS[kind, separator]
    encoder = Encoder(tokenizer)
    known = ["V", "PST", "see", "ü", "V.PTCP", "V"]
    ids = {symbol: encoder.targets([symbol])[0][0] for symbol in known}
    (target,) = encoder.targets([separator.join(known)])
    assert target == [*(ids[symbol] for symbol in known), tokenizer.eos_token_id]
    assert len({*ids.values()}) == 5
    ((*lemma, _), source) = encoder.sources([["a dog"], ["a dog", separator.join(known)]])
    assert source == [*lemma, tokenizer.sep_token_id, *target]
    assert decoded(tokenizer, target) == separator.join(known)


@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(anything)
@example("V;PST <2de>")
@example(" ;V ĠAH \u0120;V")
def test_text_never_becomes_a_symbol_or_a_tag(kind: TokenizerKind, separator: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind, separator]
    encoder = Encoder(tokenizer)
    (ids,) = encoder.sources([[text]])
    symbols = {encoder.targets([symbol])[0][0] for symbol in SYMBOLS if len(encoder.targets([symbol])[0]) == 2}
    of_text = {tokenizer.convert_tokens_to_ids(c) for c in separator} | {tokenizer.unk_token_id}
    assert not set(ids) & ({encoder.tag("<2de>"), *symbols} - of_text)


@pytest.mark.parametrize("kind", ["bpe", "character"])
@pytest.mark.parametrize("target", [None, " ", ";"])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(text=st.text(alphabet="ab ;é", max_size=12))
def test_text_beside_symbols_comes_back_too(kind: TokenizerKind, target: str | None, text: str) -> None:
    """The decoder serves targets: where these are symbols, it takes away what is in front of the first."""
    tokenizer = train_tokenizer(LEMMAS, kind, 300, False, Columns((None, ";"), target), [";V", " V"])
    (ids,) = Encoder(tokenizer).sources([[text]])
    is_cut = kind == "character" and target is not None and text.startswith(target)
    assert decoded(tokenizer, ids) == (text[1:] if is_cut else text)


def test_unknown_symbols_are_spelt_after_their_separator() -> None:
    tokenizer = TOKENIZERS["character", ";"]
    (ids,) = Encoder(tokenizer).targets(["V;VPS;qa"])
    assert tokenizer.convert_ids_to_tokens(ids) == [";V", ";", "V", "P", "S", ";", "<0x71>", "a", "</s>"]


def test_of_kind_word_unknown_symbols_are_unknown() -> None:
    tokenizer = TOKENIZERS["word", ";"]
    (ids,) = Encoder(tokenizer).targets(["V;dog;PST"])
    assert [number == tokenizer.unk_token_id for number in ids] == [False, True, False, False]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [Columns((None,), " "), Columns((" ",), None), Columns((";", None), ";")])
def test_all_kinds_of_text_go_with_symbols_on_either_side(kind: TokenizerKind, columns: Columns) -> None:
    tokenizer = tokenizer_of(kind, columns, ["V", "PST"])
    encoder = Encoder(tokenizer)
    target = "see a dog" if columns.target is None else columns.target.join(["PST", "V", "V"])
    assert decoded(tokenizer, encoder.targets([target])[0]) == target
    lengths = {separator: len(encoder.targets([target])[0]) for separator in [columns.target] if separator}
    assert all(length == 4 for length in lengths.values())
    parts = ["see a dog" if separator is None else f"V{separator}PST" for separator in columns.source]
    (source,) = encoder.sources([parts])
    assert source.count(tokenizer.sep_token_id) == len(columns.source) - 1
    for separator in columns.source:
        if separator:
            model = tokenizer.backend_tokenizer.model
            known = [tokenizer.convert_tokens_to_ids(content_of_token(separator + s, model)) for s in ("V", "PST")]
            assert str(known)[1:-1] in str(source)


def test_what_columns_are_is_saved_with_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = TOKENIZERS["bpe", "::"]
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    before, after = Encoder(tokenizer), Encoder(loaded)
    assert after.columns == Columns((None, "::"), "::")
    assert after.prefixes == ["<2de>", "to German: "]
    sources, targets = [["see", "V::PST::new"]], ["V::PST::new"]
    assert after.sources(sources, "<2de>") == before.sources(sources, "<2de>")
    assert after.targets(targets) == before.targets(targets)
    assert loaded.batch_decode(after.targets(targets), skip_special_tokens=True) == targets


@pytest.mark.parametrize("kind", KINDS)
def test_a_tag_is_one_token_in_front_and_another_prefix_is_text(kind: TokenizerKind) -> None:
    tokenizer = TOKENIZERS[kind, ";"]
    encoder = Encoder(tokenizer)
    plain, tagged, text = encoder.sources([["a dog", "V"]] * 3, ["", "<2de>", "to German: "])
    assert tagged == [encoder.tag("<2de>"), *plain]
    assert text == encoder.sources([["to German: a dog", "V"]])[0]
    assert encoder.sources([["a dog", "V"]] * 2, "<2de>") == [tagged, tagged]
    assert encoder.tag("<2de>") not in encoder.sources([["<2de>", "V"], ["<2de> a dog", "V"]], "to German: <2de>")[0]


def test_a_text_prefix_stays_text_before_symbols() -> None:
    tokenizer = tokenizer_of("character", Columns((";",), None))
    (ids,) = Encoder(tokenizer).sources([["V;PST"]], "to: ")
    assert tokenizer.convert_ids_to_tokens(ids) == ["t", "o", "<0x3A>", " ", ";V", ";PST", "</s>"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tag", ["<2fr>", "<s>", "<pad>", "<0x41>"])
def test_a_tag_that_the_model_has_not_is_refused(kind: TokenizerKind, tag: str) -> None:
    with pytest.raises(InvalidDataError, match=rf"prefix '{tag}': .* was trained with: '<2de>', 'to German: '"):
        Encoder(TOKENIZERS[kind, ";"]).sources([["a", "V"]], tag)


@pytest.mark.parametrize("tag", ["<s>", "<0x41>", "<sep>"])
def test_a_tag_with_the_name_of_a_special_token_is_refused(tag: str) -> None:
    with pytest.raises(InvalidDataError, match=f"prefix '{tag}': there is a special token of this name"):
        train_tokenizer(LEMMAS, "character", prefixes=[tag])


def test_texts_are_what_is_spelt_and_symbols_what_is_not() -> None:
    pairs = [Pair(("dog", "N;PL"), "dogs", "", "<2de>"), Pair(("see", "V;PL"), "saw", "", "to: ")]
    columns = Columns((None, ";"), None)
    assert list(texts_in(pairs, columns)) == ["dog", "dogs", "to: see", "saw"]
    assert symbols_in(pairs, columns) == [";PL", ";N", ";V"]
    columns = Columns((";", ";"), " ")
    assert list(texts_in(pairs, columns)) == ["to: "]
    assert symbols_in(pairs, columns) == [";PL", " dogs", " saw", ";N", ";V", ";dog", ";see"]


def test_a_line_with_other_columns_than_the_models_is_still_encoded() -> None:
    """Somebody's file has such lines, and a translation must not end there."""
    encoder = Encoder(TOKENIZERS["character", ";"])
    sep = encoder.tokenizer.sep_token_id
    one, three = encoder.sources([["dog"], ["dog", "V", "x"]])
    assert one.count(sep) == 0
    assert three[:-1][: len(one) - 1] == one[:-1]
    assert three.count(sep) == 2


def test_vocab_size_counts_symbols_and_tags() -> None:
    texts = ["some words which are here", "other words that stand elsewhere"] * 20
    assert len(train_tokenizer(texts, "bpe", 280, False, Columns((None,), " "), [" V", " N"], ["<2de>"])) == 280
