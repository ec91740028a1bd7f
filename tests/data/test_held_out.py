"""Held-out pairs depend on their sources only, and nothing of what is validated is trained on."""

import itertools
import random
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from hf_vanilla.data.corpus import Corpus, Pair, Symbols
from hf_vanilla.data.errors import InvalidDataError
from hf_vanilla.data.held_out import hash_of, smallest_of, split


@dataclass(frozen=True)
class Given(Corpus):
    """Pairs that are given."""

    given: tuple[tuple[str, str], ...]

    def _pairs(self) -> Iterator[Pair]:
        return (Pair((source,), target, str(number)) for number, (source, target) in enumerate(self.given))


@dataclass(frozen=True)
class Endless(Corpus):
    """Pairs without an end."""

    def _pairs(self) -> Iterator[Pair]:
        return (Pair((str(number),), "", "") for number in itertools.count())


def texts(corpora: tuple[Corpus, ...]) -> list[tuple[str, str]]:
    return [(pair.source[0], pair.target) for corpus in corpora for pair in corpus]


PAIRS = tuple((f"Sentence {number}", f"Satz {number}") for number in range(20_000))
AMOUNTS = pytest.mark.parametrize("amount", [0.02, 300])


@AMOUNTS
def test_every_pair_is_on_one_side_and_in_its_order(amount: float) -> None:
    train, validation = split((Given(PAIRS[:5000]), Given(PAIRS[5000:])), amount)
    held_out = set(texts(validation))
    assert [pair for pair in PAIRS if pair in held_out] == texts(validation)
    assert [pair for pair in PAIRS if pair not in held_out] == texts(train)


@AMOUNTS
def test_the_choice_does_not_depend_on_the_order_of_files_and_lines(amount: float) -> None:
    _, validation = split((Given(PAIRS[:5000]), Given(PAIRS[5000:])), amount)
    shuffled = random.Random(3).sample(PAIRS, len(PAIRS))  # noqa: S311
    _, again = split((Given(tuple(shuffled[:700])), Given(tuple(shuffled[700:]))), amount)
    assert sorted(texts(again)) == sorted(texts(validation))


@AMOUNTS
def test_no_source_is_on_both_sides_however_it_is_written(amount: float) -> None:
    accented = [(f"Café {number}", "a") for number in range(500)]
    written = [
        *accented,
        *((source.upper(), "b") for source, _ in accented),
        *((unicodedata.normalize("NFD", source), "c") for source, _ in accented),
        *((f"  {source.replace(' ', chr(0xA0) * 2)}\t", "d") for source, _ in accented),
    ]
    amount = amount if amount < 1 else 50
    train, validation = split((Given(tuple(written)),), amount)
    numbers_in_train, numbers_held_out = (
        {source.split()[-1] for source, _ in texts(side)} for side in (train, validation)
    )
    assert numbers_held_out
    assert not numbers_in_train & numbers_held_out
    assert len(texts(validation)) == 4 * len(numbers_held_out)


def test_pairs_that_are_added_move_no_other_from_one_side_to_the_other() -> None:
    train, validation = split((Given(PAIRS[:9000]),), 0.02)
    more, more_held_out = split((Given(PAIRS[15_000:]), Given(PAIRS[:12_000])), 0.02)
    assert set(texts(train)) <= set(texts(more))
    assert set(texts(validation)) < set(texts(more_held_out))


@pytest.mark.parametrize("share", [0.005, 0.02, 0.3])
def test_a_share_is_as_large_as_chance_makes_it(share: float) -> None:
    _, validation = split((Given(PAIRS),), share)
    expected, deviation = share * len(PAIRS), (share * (1 - share) * len(PAIRS)) ** 0.5
    assert abs(len(texts(validation)) - expected) < 4 * deviation


@pytest.mark.parametrize("number", [1, 7, 500])
def test_a_number_is_that_of_different_sources_which_keep_all_of_their_targets(number: int) -> None:
    twice = (*PAIRS[:600], *((source, f"{target}!") for source, target in PAIRS[:600]))
    train, validation = split((Given(twice),), number)
    assert len({source for source, _ in texts(validation)}) == number
    assert len(texts(validation)) == 2 * number
    assert len(texts(train)) == 2 * (600 - number)


@pytest.mark.parametrize(
    ("amount", "message"),
    [
        (3, "data.validation: 3 sources cannot be held out of the 3 different ones in data.train: lower it"),
        (10, "data.validation: 10 sources cannot be held out of the 3 different ones in data.train: lower it"),
        (1e-9, "data.validation: a share of 1e-09 holds out none of the pairs in data.train"),
        (1 - 1e-9, "data.validation: a share of 0.999999999 holds out all of the pairs in data.train"),
    ],
)
def test_a_side_without_pairs_is_refused(amount: float, message: str) -> None:
    for side in split((Given((*PAIRS[:3], *PAIRS[:3])),), amount):
        with pytest.raises(InvalidDataError, match=message):
            texts(side)


def test_a_share_is_taken_while_the_pairs_are_read() -> None:
    train, validation = split((Endless(),), 0.02)
    assert len(list(itertools.islice(train[0], 1000))) == 1000
    assert len(list(itertools.islice(validation[0], 10))) == 10


def test_both_sides_say_of_their_pairs_what_the_corpus_says() -> None:
    symbols = (Symbols(), Symbols(";"))
    for (part,) in split((Given(PAIRS, prefix="<2de>", weight=2.0, symbols=symbols),), 0.02):
        assert (part.prefix, part.weight, part.source_symbols) == ("<2de>", 2.0, (Symbols(),))
        assert part.target_symbols == Symbols(";")


def test_the_hash_of_a_source_never_changes() -> None:
    assert hash_of(("A dog,", " two  parts")) == hash_of(("a DOG,", "two parts")) == 5168681231688496697
    assert len({hash_of(source) for source in (("a b",), ("a", "b"), ("a b", ""), ("ab",))}) == 4
    hash_of(("\ud800",))  # as JSON can have it


def test_the_smallest_of_many_values() -> None:
    dice = random.Random(1)  # noqa: S311
    for number in (1, 2, 10, 99, 1000):
        values = [dice.randrange(500) for _ in range(400)]
        assert sorted(smallest_of(iter(values), number)) == sorted(set(values))[:number]
