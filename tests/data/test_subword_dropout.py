"""BPE-dropout keeps the text, is a function of its seeds, and drops merges as often as its rate says."""

import numpy as np
import pytest

from hf_vanilla.data import subword_dropout
from hf_vanilla.data.subword_dropout import SubwordDropout, hashed, ranges
from hf_vanilla.data.tokenizer import train_tokenizer

TEXTS = ["a small dog runs .", "ein kleiner Hund rennt .", "two dogs are running in 2024 !", "zwei Hunde rennen ."] * 5
TOKENIZER = train_tokenizer(TEXTS, "bpe", vocab_size=350)


def seeds(number: int) -> np.ndarray:
    return hashed(np.arange(number))


def test_it_is_a_function_of_the_seed_and_keeps_the_text() -> None:
    dropout = SubwordDropout(TOKENIZER, 0.3)
    text = "a small dog runs in 2024 , é"
    found = dropout([text] * 30, seeds(30))
    assert len(set(map(tuple, found))) > 10
    assert all(TOKENIZER.decode(ids) == text for ids in found)
    assert dropout([text] * 30, seeds(30)) == found
    assert [SubwordDropout(TOKENIZER, 0.3)([text], seed[None])[0] for seed in seeds(30)] == found


def test_many_texts_at_once_are_each_text_word_by_word() -> None:
    dropout = SubwordDropout(TOKENIZER, 0.3)
    texts = ["", *TEXTS, "x", "unseen wörds, and 31 more"]
    found = dropout(texts, seeds(len(texts)))
    for text, seed, ids in zip(texts, seeds(len(texts)), found, strict=True):
        words = [word for word, _ in dropout.split(dropout.normalize(text))]
        variants = [int(hashed(seed, place)[0]) % 256 for place in range(len(words))]
        parts = [dropout.segmentation(word, variant) for word, variant in zip(words, variants, strict=True)]
        assert ids == [number for part in parts for number in part]


def test_what_is_forgotten_is_drawn_again_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = SubwordDropout(TOKENIZER, 0.3)(TEXTS, seeds(len(TEXTS)))
    monkeypatch.setattr(subword_dropout, "MOST_WORDS", 5)
    dropout = SubwordDropout(TOKENIZER, 0.3)
    sizes = []
    for text, seed, ids in zip(TEXTS, seeds(len(TEXTS)), expected, strict=True):
        assert dropout([text], seed[None]) == [ids]
        sizes.append(len(dropout.numbers))
    assert 5 < max(sizes) < len({word for text in TEXTS for word in text.split()})
    assert sizes != sorted(sizes)


def test_without_dropout_the_merges_are_those_of_the_tokenizer() -> None:
    texts = [*TEXTS, "unseen wörds, and 31 more"]
    expected = TOKENIZER(texts, add_special_tokens=False)["input_ids"]
    assert SubwordDropout(TOKENIZER, 0.0)(texts, seeds(len(texts))) == expected


def test_dropping_every_merge_leaves_bytes() -> None:
    (ids,) = SubwordDropout(TOKENIZER, 1.0)(["dogs"], seeds(1))
    assert TOKENIZER.convert_ids_to_tokens(ids) == ["Ġ", "d", "o", "g", "s"]


def test_each_merge_is_dropped_as_often_as_the_rate_says() -> None:
    tokenizer = train_tokenizer(["ab ab"] * 9, "bpe", vocab_size=264)  # the merges: "ab" or " a", then " ab"
    dropout = SubwordDropout(tokenizer, 0.25)
    whole = sum(len(dropout.segmentation("Ġab", variant)) == 1 for variant in range(4000))
    # Both merges must be kept; the first may be the other one and then a merge is missing, so at most 0.75 ** 2.
    assert whole / 4000 == pytest.approx(0.75**2, abs=0.03)


def test_it_needs_byte_pairs() -> None:
    with pytest.raises(ValueError, match=r"BPE-dropout \(0.1\) needs a tokenizer of byte pairs"):
        SubwordDropout(train_tokenizer(TEXTS, "character"), 0.1)


def test_hashes_are_those_of_splitmix64_and_depend_on_every_number() -> None:
    # The first outputs of the generator with seed 0, as its authors' reference code gives them.
    assert int(hashed(0)[0]) == 0xE220A8397B1DCDAF
    assert int(hashed(0x9E3779B97F4A7C15)[0]) == 0x6E789E6AA1B965F4
    numbers = [(seed, epoch, index) for seed in range(3) for epoch in range(20) for index in range(500)]
    found = hashed(*np.array(numbers).T)
    assert len(set(found.tolist())) == len(numbers)
    counts = np.bincount((found % np.uint64(256)).astype(int), minlength=256)
    chi_square = ((counts - len(numbers) / 256) ** 2 / (len(numbers) / 256)).sum()
    assert 180 < chi_square < 345  # 255 degrees of freedom: outside of this once in ten thousand times


def test_ranges_are_those_of_python() -> None:
    starts, lengths = np.array([5, 0, 7, 2]), np.array([2, 0, 3, 1])
    expected = [n for start, length in zip(starts, lengths, strict=True) for n in range(start, start + length)]
    assert ranges(starts, lengths).tolist() == expected
