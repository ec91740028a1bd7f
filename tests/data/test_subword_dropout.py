"""BPE-dropout keeps the text, is a function of its seeds, and drops merges as often as its rate says."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hf_vanilla.data import subword_dropout
from hf_vanilla.data.subword_dropout import MAX_WAYS, MAX_WORD_LENGTH, MIN_WAYS, SubwordDropout, Words, hashed, ranges
from hf_vanilla.data.tokenizer import Columns, Encoder, train_tokenizer

TEXTS = ["a small dog runs .", "ein kleiner Hund rennt .", "two dogs are running in 2024 !", "zwei Hunde rennen ."] * 5
TOKENIZER = train_tokenizer(TEXTS, "bpe", vocab_size=350)


def seeds(number: int) -> np.ndarray:
    return hashed(np.arange(number))


def written(file: Path, texts: Sequence[str | list[str]], rate: float) -> tuple[SubwordDropout, pa.ListArray]:
    """A corpus of sources, which may have several parts, as it is encoded."""
    words, encoder = Words(TOKENIZER, rate), Encoder(TOKENIZER)
    numbers = [words.of(encoder.source_pieces([text] if isinstance(text, str) else text)) for text in texts]
    words.write(file)
    return SubwordDropout(file), pa.array(numbers, pa.list_(pa.int32()))


def split(text: str) -> list[str]:
    return list(Words(TOKENIZER, 0.3).words(text))


def test_it_is_a_function_of_the_seed_and_keeps_the_text(tmp_path: Path) -> None:
    text = "a small dog runs in 2024 , é"
    dropout, texts = written(tmp_path / "a", [text] * 30, 0.3)
    found = dropout(texts, seeds(30))
    assert len(set(map(tuple, found))) > 10
    assert all(TOKENIZER.decode(ids, skip_special_tokens=True) == text for ids in found)
    assert dropout(texts, seeds(30)) == found
    assert [dropout(texts[:1], seed[None])[0] for seed in seeds(30)] == found
    again, texts = written(tmp_path / "b", [text] * 30, 0.3)
    assert again(texts, seeds(30)) == found


def test_many_texts_at_once_are_each_text_word_by_word(tmp_path: Path) -> None:
    texts = ["", *TEXTS, "x", "unseen wörds, and 31 more"]
    dropout, encoded = written(tmp_path / "a", texts, 0.3)
    counts = Counter(word for text in texts for word in split(text))
    segmentations = Words(TOKENIZER, 0.3).segmentations
    for text, seed, ids in zip(texts, seeds(len(texts)), dropout(encoded, seeds(len(texts))), strict=True):
        expected = []
        for place, word in enumerate(split(text)):
            number = min(max(counts[word], MIN_WAYS), MAX_WAYS)
            random_bits = int(hashed(seed + np.uint64(place))[0]) >> 32
            expected += segmentations(word, number)[random_bits * number >> 32]
        assert ids == [*expected, TOKENIZER.eos_token_id]


def test_part_of_a_column_is_drawn_like_the_whole(tmp_path: Path) -> None:
    """Rows that are read by index are slices, whose offsets do not begin at 0."""
    dropout, encoded = written(tmp_path / "a", TEXTS, 0.3)
    whole = dropout(encoded, seeds(len(TEXTS)))
    assert dropout(encoded[3:7], seeds(len(TEXTS))[3:7]) == whole[3:7]
    assert dropout.lengths(encoded[3:7], seeds(len(TEXTS))[3:7]).tolist() == [len(ids) for ids in whole[3:7]]


def test_parts_of_a_source_are_joined_by_the_separator(tmp_path: Path) -> None:
    dropout, encoded = written(tmp_path / "a", [["two dogs", "", "run"]], 0.0)
    tokens = TOKENIZER.convert_ids_to_tokens(dropout(encoded, seeds(1))[0])
    parts = [TOKENIZER.tokenize(part) for part in ("two dogs", "", "run")]
    assert tokens == [*parts[0], "<sep>", *parts[1], "<sep>", *parts[2], "</s>"]


def test_without_dropout_the_merges_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    texts = [*TEXTS, "unseen wörds, and 31 more"]
    dropout, encoded = written(tmp_path / "a", texts, 0.0)
    assert dropout(encoded, seeds(len(texts))) == TOKENIZER(texts)["input_ids"]


def test_text_without_spaces_is_divided_into_tokens(tmp_path: Path) -> None:
    """Else each sentence would be a word of its own, with ways of its own."""
    words = ["small", "running", "dogs", "kleiner", "Hund", "rennen"]
    texts = ["".join([*words[n:], *words[:n]]) for n in range(6)]
    assert all(len(text) > MAX_WORD_LENGTH for text in texts)
    assert {word for text in texts for word in split(text)} == {t for text in texts for t in TOKENIZER.tokenize(text)}
    for rate in (0.0, 0.3):
        dropout, encoded = written(tmp_path / str(rate), texts, rate)
        found = dropout(encoded, seeds(len(texts)))
        assert [TOKENIZER.decode(ids, skip_special_tokens=True) for ids in found] == texts
        assert (found == TOKENIZER(texts)["input_ids"]) == (rate == 0.0)


def test_dropping_every_merge_leaves_bytes() -> None:
    (ids,) = Words(TOKENIZER, 1.0).segmentations("Ġdogs", 1)
    assert TOKENIZER.convert_ids_to_tokens(ids) == ["Ġ", "d", "o", "g", "s"]


def test_each_merge_is_dropped_as_often_as_the_rate_says() -> None:
    tokenizer = train_tokenizer(["ab ab"] * 9, "bpe", vocab_size=264)  # the merges: "ab" or " a", then " ab"
    whole = sum(len(way) == 1 for way in Words(tokenizer, 0.25).segmentations("Ġab", 4000))
    # Both merges must be kept; the first may be the other one and then a merge is missing, so at most 0.75 ** 2.
    assert whole / 4000 == pytest.approx(0.75**2, abs=0.03)


def test_a_word_has_as_many_ways_as_it_occurs_within_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subword_dropout, "MIN_WAYS", 2)
    monkeypatch.setattr(subword_dropout, "MAX_WAYS", 5)
    dropout, _ = written(tmp_path / "a", ["a b c", "a b", "a b", *["a"] * 9], 0.3)
    assert np.diff(dropout.first_way).tolist() == [5, 3, 2, 1]  # the words, and <eos>


def test_every_way_is_drawn_as_often(tmp_path: Path) -> None:
    dropout, texts = written(tmp_path / "a", ["kleiner"] * 16_000, 0.3)
    ways, _ = dropout._drawn(texts, seeds(len(texts)))
    counts = np.bincount(ways[::2], minlength=MAX_WAYS)  # every second word is <eos>
    chi_square = ((counts - 16_000 / MAX_WAYS) ** 2 / (16_000 / MAX_WAYS)).sum()
    assert len(counts) == MAX_WAYS
    assert 75 < chi_square < 195  # 127 degrees of freedom: outside of this once in ten thousand times


def test_it_needs_byte_pairs() -> None:
    with pytest.raises(ValueError, match=r"BPE-dropout \(0.1\) needs a tokenizer of byte pairs"):
        Words(train_tokenizer(TEXTS, "character"), 0.1)


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


def test_symbols_and_tags_stay_whole(tmp_path: Path) -> None:
    columns = Columns((None, ";"), " ")
    tokenizer = train_tokenizer(TEXTS, "bpe", 350, False, columns, [";dogs", ";rennen", " dogs", " Hund"], ["<2de>"])
    words, encoder, source = Words(tokenizer, 0.4), Encoder(tokenizer), ["dogs Hund", "dogs;new;rennen"]
    numbers = [words.of(encoder.source_pieces(source, "<2de>")), words.of(encoder.target_pieces("Hund dogs"))] * 20
    words.write(tmp_path / "a")
    found = SubwordDropout(tmp_path / "a")(pa.array(numbers, pa.list_(pa.int32())), seeds(40))
    sources, targets = found[::2], found[1::2]
    (whole,) = encoder.sources([source], "<2de>")
    separator = whole.index(tokenizer.sep_token_id)
    for ids in sources:
        assert ids[0] == encoder.tag("<2de>")
        assert ids[ids.index(tokenizer.sep_token_id) :] == whole[separator:]
    assert len({tuple(ids) for ids in sources}) > 5  # the lemma is segmented anew
    assert {tuple(ids) for ids in targets} == {tuple(encoder.targets(["Hund dogs"])[0])}
