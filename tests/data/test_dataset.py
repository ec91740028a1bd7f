"""Pairs come back from the memory-mapped file as they were, what is left out is counted, and memory does not grow."""

import hashlib
import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import datasets
import pytest
import torch
from torch.utils.data import DataLoader

from hf_vanilla.data.batching import TokenBudgetBatches
from hf_vanilla.data.corpus import Pair
from hf_vanilla.data.dataset import (
    LengthLimits,
    PairCollator,
    TrainingPairs,
    encode_corpora,
    lengths_of,
    mixture_of,
    prefixes_of,
    subword_dropout_of,
)
from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.data.tokenizer import train_tokenizer

TEXTS = ["a dog runs", "ein Hund rennt", "two dogs", "zwei Hunde"]
TOKENIZER = train_tokenizer(TEXTS * 9, "bpe", vocab_size=320)
LIMITS = LengthLimits(source=8, target=8)


def pairs(*texts: tuple[str, str]) -> list[Pair]:
    return [Pair((source,), target, f"file:{line}") for line, (source, target) in enumerate(texts, 1)]


def test_ids_and_lengths_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    dataset, skipped = encode_corpora(
        [pairs(*zip(TEXTS[::2], TEXTS[1::2], strict=True))], TOKENIZER, LIMITS, tmp_path / "a"
    )
    assert str(skipped) == "none"
    assert dataset["source_ids"][:] == TOKENIZER(TEXTS[::2])["input_ids"]
    assert dataset["target_ids"][:] == TOKENIZER(TEXTS[1::2])["input_ids"]
    expected = [[len(s), len(t)] for s, t in zip(dataset["source_ids"], dataset["target_ids"], strict=True)]
    assert lengths_of(dataset).tolist() == expected


def test_what_is_left_out_is_counted_and_its_first_place_named(tmp_path: Path) -> None:
    texts = [("a dog", "x"), ("", "x"), ("  ", "y"), ("a dog", "\t"), ("xyz xyz xyz xyz", "x"), ("x", "zzzzzzzzz")]
    dataset, skipped = encode_corpora([pairs(*texts)], TOKENIZER, LIMITS, tmp_path / "a")
    assert len(dataset) == 1
    assert str(skipped) == (
        "2 with an empty source (first: file:2); 1 with an empty target (first: file:4); "
        "1 with a source of more than 8 tokens (first: file:5); 1 with a target of more than 8 tokens (first: file:6)"
    )


def test_thousands_that_are_left_out_leave_no_empty_part(tmp_path: Path) -> None:
    texts = [("a dog", "x")] * 1000 + [("xyz xyz xyz xyz", "x")] * 3
    dataset, _ = encode_corpora([pairs(*texts)], TOKENIZER, LIMITS, tmp_path / "a")
    assert len(dataset) == 1000
    assert [len(part) for part in dataset.data.column("source_ids").chunks] == [1000]


def test_nothing_left_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidDataError, match=r"no pair is left to use; skipped: 1 with an empty source"):
        encode_corpora([pairs(("", "x"))], TOKENIZER, LIMITS, tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


def test_an_error_in_the_middle_leaves_no_finished_file(tmp_path: Path) -> None:
    def breaking() -> object:
        yield from pairs(("a dog", "x"))
        raise InvalidDataError("file:2: broken")

    with pytest.raises(InvalidDataError, match="file:2: broken"):
        encode_corpora([breaking()], TOKENIZER, LIMITS, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def encoded_for_dropout(file: Path, copies: int = 1) -> datasets.Dataset:
    dataset, _ = encode_corpora([pairs(*zip(TEXTS, TEXTS, strict=True)) * copies], TOKENIZER, LIMITS, file, 0.5)
    return dataset


def test_training_pairs_are_a_function_of_seed_epoch_and_index(tmp_path: Path) -> None:
    dataset = encoded_for_dropout(tmp_path / "a")
    plain = TrainingPairs(dataset)
    assert plain[0, 2] == plain[5, 2] == {"input_ids": dataset["source_ids"][2], "labels": dataset["target_ids"][2]}

    def seen(seed: int) -> list[dict[str, list[int]]]:
        dropped = TrainingPairs(dataset, subword_dropout_of(dataset), seed)
        return [dropped[epoch, index] for epoch in range(3) for index in range(4)]

    assert seen(1) == seen(1)
    assert seen(1) != seen(2)
    assert seen(1)[:4] != seen(1)[4:8]
    for example, index in zip(seen(1), list(range(4)) * 3, strict=True):
        assert TOKENIZER.decode(example["labels"], skip_special_tokens=True) == TEXTS[index]
        assert example["input_ids"][-1] == example["labels"][-1] == TOKENIZER.eos_token_id


def test_lengths_are_those_of_the_examples_of_the_epoch(tmp_path: Path) -> None:
    dataset = encoded_for_dropout(tmp_path / "a", copies=700)  # several blocks of the file
    for dropout in (None, subword_dropout_of(dataset)):
        examples = TrainingPairs(dataset, dropout)
        for epoch in range(3):
            lengths = examples.lengths(epoch) if callable(examples.lengths) else examples.lengths
            seen = examples.__getitems__([(epoch, index) for index in range(len(examples))])
            assert lengths.tolist() == [[len(example["input_ids"]), len(example["labels"])] for example in seen]


def test_dropout_makes_no_text_longer_than_the_limits(tmp_path: Path) -> None:
    dataset = encoded_for_dropout(tmp_path / "a", copies=50)
    free = TrainingPairs(dataset, subword_dropout_of(dataset), seed=3)
    examples = TrainingPairs(dataset, subword_dropout_of(dataset), seed=3, limits=LIMITS)
    usual, drawn = lengths_of(dataset), free.lengths(1)
    assert (drawn > 8).any(axis=0).all()
    assert (
        examples.lengths(1)
        == [
            [n if n <= 8 else u for n, u in zip(*row, strict=True)]
            for row in zip(drawn.tolist(), usual.tolist(), strict=True)
        ]
    ).all()
    keys = [(1, index) for index in range(len(examples))]
    for place, (one, other) in enumerate(zip(examples.__getitems__(keys), free.__getitems__(keys), strict=True)):
        for name, ids in (("input_ids", "source_ids"), ("labels", "target_ids")):
            assert one[name] == (other[name] if len(other[name]) <= 8 else dataset[place][ids])


def test_workers_that_share_no_memory_draw_the_same(tmp_path: Path) -> None:
    """Under spawn and forkserver, the default of Python 3.14, a worker gets a pickle of the examples."""
    dataset = encoded_for_dropout(tmp_path / "a")
    examples = TrainingPairs(dataset, subword_dropout_of(dataset), seed=5)
    batches = [[(epoch, index) for index in range(4)] for epoch in range(5)]
    started = [
        iter(
            DataLoader(examples, batch_sampler=batches, collate_fn=list, num_workers=1, multiprocessing_context=method)
        )
        for method in ("spawn", "forkserver")
    ]
    expected = [examples.__getitems__(keys) for keys in batches]
    assert [list(loader) for loader in started] == [expected, expected]


def test_an_epoch_is_planned_in_less_than_a_hundredth_of_its_training(tmp_path: Path) -> None:
    """Of the time that 18,000 target tokens per second take, as on a CPU."""
    texts = [" ".join(TEXTS[(n + k) % 4] for k in range(8)) for n in range(1000)]
    dataset, _ = encode_corpora(
        [pairs(*zip(texts, texts, strict=True))], TOKENIZER, LengthLimits(200, 200), tmp_path / "a", 0.1
    )
    examples = TrainingPairs(datasets.concatenate_datasets([dataset] * 50), subword_dropout_of(dataset))
    batches = TokenBudgetBatches(examples.lengths, 4096)
    batches.set_epoch(1)
    started = time.process_time()
    assert sum(1 for _ in batches) == len(batches)
    planned = time.process_time() - started
    assert planned < 0.01 * examples.lengths(1)[:, 1].sum() / 18_000


@pytest.mark.parametrize(("rate", "number", "checksum"), [(0.0, 8, "2326523559380b43"), (0.2, 16, "5d6058b1c841e20e")])
def test_without_weights_the_batches_are_those_of_earlier_versions(
    rate: float, number: int, checksum: str, tmp_path: Path
) -> None:
    """Recorded with the version before there were weights: a training goes on with the same examples and tokens."""
    texts = [" ".join(TEXTS[(n + k) % 4] for k in range(n % 5 + 1)) for n in range(80)]
    every_pair = pairs(*pairwise(texts))
    dataset, _ = encode_corpora([every_pair], TOKENIZER, LengthLimits(200, 200), tmp_path / "a", rate)
    examples = TrainingPairs(dataset, subword_dropout_of(dataset) if rate else None, 7, mixture_of(dataset, [None]))
    batches = TokenBudgetBatches(examples.lengths, 150, per_step=2, seed=7)
    seen = []
    for epoch in range(2):
        batches.set_epoch(epoch)
        seen += [[keys, examples.__getitems__(keys)] for keys in batches]
    assert len(batches) == number
    assert hashlib.sha256(json.dumps(seen).encode()).hexdigest().startswith(checksum)


def weighted(file: Path, dropout: float = 0.0) -> datasets.Dataset:
    """40 pairs of one corpus and 31 of another."""
    corpora = [
        pairs(*[(TEXTS[n % 2], f"{n}") for n in range(40)]),
        pairs(*[(TEXTS[2 + n % 2], "b") for n in range(31)]),
    ]
    return encode_corpora(corpora, TOKENIZER, LIMITS, file, dropout)[0]


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_with_weights_each_epoch_has_its_shares_in_batches_of_the_right_lengths(dropout: float, tmp_path: Path) -> None:
    dataset = weighted(tmp_path / "a", dropout)
    segmentations = subword_dropout_of(dataset) if dropout else None
    examples = TrainingPairs(dataset, segmentations, 5, mixture_of(dataset, [3, 1], 5))
    batches = TokenBudgetBatches(examples.lengths, 60, seed=5)
    assert callable(examples.lengths)
    for epoch in range(3):
        batches.set_epoch(epoch)
        seen = [example for keys in batches for example in examples.__getitems__(keys)]
        texts = [TOKENIZER.decode(example["input_ids"], skip_special_tokens=True) for example in seen]
        of_first = sum(text in TEXTS[:2] for text in texts)
        assert len(texts) == len(examples) == 31 + 93
        assert abs(of_first - 0.75 * len(texts)) <= 1
        for index, (source, target) in enumerate(examples.lengths(epoch)):
            example = examples[epoch, index]
            assert (len(example["input_ids"]), len(example["labels"])) == (source, target)


def test_a_pair_that_comes_twice_in_an_epoch_is_segmented_anew(tmp_path: Path) -> None:
    dataset = weighted(tmp_path / "a", 0.4)
    examples = TrainingPairs(dataset, subword_dropout_of(dataset), 5, mixture_of(dataset, [30, 1], 5))
    seen = {tuple(examples[0, index]["input_ids"]) for index in range(800)}
    assert len(seen) > 10  # of two sources


def test_a_corpus_of_which_nothing_is_left_cannot_have_its_share(tmp_path: Path) -> None:
    dataset, _ = encode_corpora([pairs(("a dog", "x")), pairs(("", "x"))], TOKENIZER, LIMITS, tmp_path / "a")
    with pytest.raises(InvalidDataError, match=r"data.train\[1\]: none of its pairs .* share \(weight: 0.5\)"):
        mixture_of(dataset, [1.0, 0.5])


def test_pairs_keep_their_prefix_and_their_ids_have_it(tmp_path: Path) -> None:
    tokenizer = train_tokenizer([*TEXTS, "auf Deutsch: "], "bpe", 330, prefixes=["<2de>", "auf Deutsch: "])
    corpora = [[Pair(("two dogs",), "x", "", prefix)] for prefix in ("<2de>", "", "auf Deutsch: ")]
    dataset, _ = encode_corpora(corpora, tokenizer, LengthLimits(30, 30), tmp_path / "a", 0.5)
    assert prefixes_of(dataset) == ["<2de>", "", "auf Deutsch: "]
    assert dataset["source"][:] == [["two dogs"]] * 3
    assert dataset["corpus"][:] == [0, 1, 2]
    expected = ["<2de> two dogs", "two dogs", "auf Deutsch: two dogs"]
    dropped = TrainingPairs(dataset, subword_dropout_of(dataset))
    for number, text in enumerate(expected):
        for ids in (dataset["source_ids"][number], dropped[0, number]["input_ids"]):
            assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_a_file_of_an_earlier_version_has_no_prefixes(tmp_path: Path) -> None:
    dataset, _ = encode_corpora([pairs(("a dog", "x"), ("two", "y"))], TOKENIZER, LIMITS, tmp_path / "a")
    earlier = dataset.remove_columns(["prefix", "corpus"])
    assert prefixes_of(earlier) == ["", ""]
    assert mixture_of(earlier, [None]) is None
    assert TrainingPairs(earlier)[0, 1] == TrainingPairs(dataset)[0, 1]


@pytest.mark.parametrize("what", ["column", "file"])
def test_data_without_what_dropout_needs_is_refused(what: str, tmp_path: Path) -> None:
    dataset = encoded_for_dropout(tmp_path / "train.arrow")
    if what == "file":
        (tmp_path / "train.segmentations.arrow").unlink()
    else:
        dataset, _ = encode_corpora([pairs(("a dog", "x"))], TOKENIZER, LIMITS, tmp_path / "train.arrow")
    with pytest.raises(InvalidDataError, match=r"train.arrow: was not encoded for BPE-dropout .* new directory"):
        subword_dropout_of(dataset)


def test_batches_are_padded_on_the_right() -> None:
    batch = PairCollator(1)([{"input_ids": [5, 2], "labels": [7, 8, 2]}, {"input_ids": [5, 6, 2], "labels": [2]}])
    assert batch["input_ids"].tolist() == [[5, 2, 1], [5, 6, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["labels"].tolist() == [[7, 8, 2], [2, -100, -100]]
    assert batch["labels"].dtype == torch.long


GROWING = """
import resource, sys
from pathlib import Path
from hf_vanilla.data.corpus import Pair
from hf_vanilla.data.dataset import LengthLimits, encode_corpora, lengths_of
from hf_vanilla.data.tokenizer import train_tokenizer

tokenizer = train_tokenizer(["abc def"] * 9, "character")
count, text = int(sys.argv[2]), "abc def " * 60
pairs = (Pair((text,), text, str(number)) for number in range(count))
dataset, _ = encode_corpora([pairs], tokenizer, LengthLimits(600, 600), Path(sys.argv[1]))
assert len(lengths_of(dataset)) == count
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_peak_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """Eight times the pairs, 70 MB more on disk."""
    peaks = []
    for count in (2_000, 16_000):
        command = [sys.executable, "-c", GROWING, str(tmp_path / str(count)), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        peaks.append(int(done.stdout))
    assert (tmp_path / "16000").stat().st_size - (tmp_path / "2000").stat().st_size > 60 * 2**20
    assert peaks[1] - peaks[0] < 30
