"""What is proposed follows from what pairs are like."""

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from hf_vanilla.data.corpus import Pair
from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.training.proposal import Facts, Values, held_out, limit, look, proposal

SENTENCES = Facts(
    pairs=29_000,
    sources=29_000,
    frequent_words=7_000,
    is_spelt=False,
    is_answer=False,
    has_symbol_targets=False,
    other_targets=0.0,
    target_script="LATIN",
)
WORDS = replace(SENTENCES, pairs=4_000, frequent_words=300, is_spelt=True, is_answer=True)


def lengths(pairs: int, source: int, target: int) -> np.ndarray:
    return np.tile([source, target], (min(pairs, 1_000_000), 1))


def proposed(facts: Facts, source: int = 14, target: int = 15) -> Values:
    return proposal({"train": {"file": "a.tsv", "source": 0, "target": 1}}, facts, lengths(facts.pairs, source, target))


def pairs(texts: Iterable[tuple[str, str]]) -> list[Pair]:
    return [Pair((source,), target, "") for source, target in texts]


def test_words_that_come_often_enough_are_counted_and_numbers_by_their_digits() -> None:
    facts = look(pairs([("the dog, 1984", "der Hund")] * 2 + [("a cat", "eine Katze")]), (False, False))
    assert facts.pairs == 3
    assert facts.sources == 2
    assert facts.frequent_words == len({"the", "dog", ",", "1", "9", "8", "4", "der", "Hund"})
    assert not facts.is_spelt


def test_single_words_are_spelt_and_columns_of_symbols_do_not_count() -> None:
    facts = look(pairs([("abating", "AH B EY T IH NG")] * 9), (False, True))
    assert facts.is_spelt
    assert facts.is_answer
    assert facts.has_symbol_targets
    assert not look(pairs([("abating", "AH B EY T IH NG")] * 9), (False, False)).is_spelt


def test_sentences_without_spaces_are_no_words() -> None:
    facts = look(pairs([("我喜欢读书", "猫在桌子上睡觉")] * 9), (False, False))
    assert not facts.is_spelt
    assert not facts.is_answer
    assert facts.target_script == "CJK"
    assert facts.frequent_words == len(set("我喜欢读书猫在桌子上睡觉"))


def test_columns_may_all_be_symbols() -> None:
    facts = look(pairs([("N;SG", "AH B")] * 9), (True, True))
    assert (facts.pairs, facts.frequent_words, facts.is_spelt) == (9, 0, True)


def test_several_targets_of_a_source_are_noticed() -> None:
    facts = look(pairs([("read", "R IY D"), ("read", "R EH D"), ("dog", "D AO G"), ("dog", "D AO G")]), (False, True))
    assert facts.other_targets == 0.25
    assert proposed(facts)["training"]["group_references"] is True


def test_no_pairs_are_an_error() -> None:
    with pytest.raises(InvalidDataError, match=r"data\.train: there are no pairs"):
        look([], (False, False))


def test_text_is_segmented_into_a_token_for_each_word_that_comes_often_and_words_are_spelt() -> None:
    assert proposed(SENTENCES)["tokenizer"] == {"kind": "bpe", "vocab_size": 7300, "dropout": 0.05}
    assert proposed(replace(SENTENCES, pairs=10**6, frequent_words=10**6))["tokenizer"]["vocab_size"] == 10_000
    assert proposed(replace(SENTENCES, pairs=10**7, frequent_words=10**6))["tokenizer"]["vocab_size"] == 32_000
    assert proposed(WORDS)["tokenizer"] == {"kind": "character"}


def test_more_pairs_are_given_larger_models_with_less_dropout() -> None:
    models = [proposed(replace(SENTENCES, pairs=pairs))["model"] for pairs in (1_000, 300_000, 5_000_000)]
    assert [model["d_model"] for model in models] == [128, 256, 512]
    assert [model["dropout"] for model in models] == [0.3, 0.15, 0.1]
    assert all(model["d_model"] % model["num_heads"] == 0 for model in models)


def test_batches_of_text_grow_with_it_and_those_of_words_have_400_pairs() -> None:
    small = proposed(replace(SENTENCES, pairs=1_000))["training"]
    large = proposed(SENTENCES)["training"]
    assert (small["max_tokens"], large["max_tokens"]) == (1024, 8192)
    assert 400 * 12 <= proposed(WORDS, 9, 12)["training"]["max_tokens"] < 400 * 12 + 512
    millions = proposed(replace(SENTENCES, pairs=5_000_000))["training"]
    assert 24_000 < millions["max_tokens"] * millions["gradient_accumulation_steps"] <= 25_000


@pytest.mark.parametrize(("pairs", "passes"), [(1_000, 200), (29_000, 200), (120_000, 50), (1_000_000, 20)])
def test_few_pairs_are_seen_more_often(pairs: int, passes: int) -> None:
    found = proposed(replace(SENTENCES, pairs=pairs))["training"]
    an_epoch = 15 * pairs / found["max_tokens"]
    assert found["max_steps"] / an_epoch == pytest.approx(passes, rel=0.1)


@pytest.mark.parametrize("facts", [WORDS, replace(SENTENCES, is_answer=True)], ids=["words", "short answers"])
@pytest.mark.parametrize(("pairs", "passes"), [(100, 2000), (4_000, 300), (109_000, 80)])
def test_answers_are_seen_1_200_000_times_or_80_each(facts: Facts, pairs: int, passes: int) -> None:
    found = proposed(replace(facts, pairs=pairs), 12, 12)["training"]
    assert found["max_steps"] / math.ceil(12 * pairs / found["max_tokens"]) == pytest.approx(passes, rel=0.05)


@pytest.mark.parametrize("facts", [SENTENCES, WORDS, replace(WORDS, pairs=20, sources=20)])
def test_averaged_checkpoints_are_kept_and_made_and_the_warm_up_is_short(facts: Facts) -> None:
    training = proposed(facts)["training"]
    assert training["max_steps"] >= 20 * training["save_steps"]
    assert training["average_checkpoints"] < training["save_total_limit"]
    assert 0 < training["warmup_steps"] <= training["max_steps"] / 9
    assert training["metric_for_best_model"] == training["metrics"][0]


def test_answers_are_right_or_wrong_and_sentences_are_scored() -> None:
    assert proposed(SENTENCES)["training"]["metrics"] == ["bleu", "chrf"]
    assert proposed(WORDS)["training"]["metrics"] == ["exact_match", "character_error_rate"]
    phonemes = replace(WORDS, has_symbol_targets=True)
    assert proposed(phonemes)["training"]["metrics"] == ["exact_match", "token_error_rate"]
    chinese = replace(SENTENCES, target_script="CJK")
    assert proposed(chinese)["training"]["bleu_tokenize"] == "char"


def test_what_is_held_out_is_enough_to_choose_by_and_no_large_part() -> None:
    numbers = [held_out(replace(SENTENCES, sources=sources)) for sources in (10, 300, 5_000, 29_000, 10**7)]
    assert numbers == [2, 60, 250, 1450, 2000]
    given = {"train": {}, "validation": {"file": "b.tsv"}}
    assert proposal(given, SENTENCES, lengths(100, 9, 9))["data"]["validation"] == {"file": "b.tsv"}


def test_lengths_have_room_and_a_few_very_long_texts_do_not_count() -> None:
    assert limit(np.array([10, 20, 40])) == 56  # 1.25 times 40, and up to a multiple of 8
    assert limit(np.array([100] * 999 + [100_000])) == 256
    assert limit(np.array([300] * 999 + [100_000])) == 304
    long = proposed(SENTENCES, 9_000, 900)  # more than a batch of text usually has
    assert long["training"]["max_tokens"] >= long["data"]["max_source_length"] >= 9_000
