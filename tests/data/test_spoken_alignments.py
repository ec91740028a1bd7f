"""The words that make each character of the quick-start task, against answers by hand and against all other forms."""

from itertools import islice

import pytest
from test_spoken import hear

from hf_vanilla.data.spoken import spoken_pairs
from hf_vanilla.data.spoken_alignments import _times, decided, gold_links, named, spoken_alignments, written_for


def by_character(makers: list[set[int]], spoken: str) -> str:
    """ "nineteen -" for two characters, the first of which is made by "nineteen" alone."""
    words = spoken.split()
    return " ".join("/".join(words[index] for index in sorted(found)) or "-" for found in makers)


@pytest.mark.parametrize(
    ("spoken", "written", "naming", "deciding"),
    [
        (
            "the twenty third of march nineteen eighty four",
            "1984-03-23",
            "nineteen nineteen eighty four - march march - twenty third",
            "nineteen - eighty four - march march - - third",
        ),
        (
            "march the fifth two thousand and sixteen",
            "2016-03-05",
            "two - sixteen sixteen - march march - fifth fifth",
            "- - sixteen sixteen - march march - the/fifth fifth",
        ),
        (
            "december thirtieth twenty oh nine",
            "2009-12-30",
            "twenty twenty oh nine - december december - thirtieth thirtieth",
            "twenty - oh nine - december december - thirtieth -",
        ),
        (
            "half past three in the afternoon",
            "15:30",
            "past/three/in/the/afternoon past/three/in/the/afternoon - half/past half/past",
            "afternoon three - half -",
        ),
        (
            "quarter to nine in the evening",
            "20:45",
            "to/nine/in/the/evening to/nine/in/the/evening - quarter/to quarter/to",
            "nine/evening - - quarter quarter",
        ),
        (
            "seven oh five p m",
            "19:05",
            "seven/p/m seven/p/m - oh five",
            "seven/p seven - oh five",
        ),
        (
            "three hundred and five pounds",
            "£305",
            "pounds three - five",
            "pounds three and/five hundred/and/five",
        ),
        (
            "twelve dollars and fifty cents",
            "$12.50",
            "dollars/cents twelve twelve - fifty fifty",
            "dollars twelve twelve - fifty -",
        ),
        (
            "the one hundred and twelfth",
            "112th",
            "one twelfth twelfth twelfth twelfth",
            "one hundred/twelfth twelfth - -",
        ),
        (
            "the nine thousand eight hundred and third",
            "9803rd",
            "nine eight - third third third",
            "nine eight and/third third - -",
        ),
    ],
)
def test_words_name_and_decide_characters(spoken: str, written: str, naming: str, deciding: str) -> None:
    assert by_character(named(spoken, written), spoken) == naming
    assert by_character(decided(spoken, written), spoken) == deciding


def test_a_sure_link_is_named_and_decided_by_that_word_alone() -> None:
    spoken, written = "the twenty third of march nineteen eighty four", "1984-03-23"
    links = gold_links(spoken, written)
    assert links.sure == {(5, 0), (6, 2), (7, 3), (4, 5), (4, 6), (2, 9)}
    assert {(word, 1) for word in range(8)} <= links.possible  # nothing decides the 9
    assert {(word, 4) for word in range(8)} <= links.possible  # nothing names a hyphen
    assert {word for word, character in links.possible if character == 2} == {6}


def test_what_decides_a_time_is_found_among_all_times() -> None:
    times = _times()
    split = {spoken: spoken.split() for spoken in times}
    for spoken in islice(times, 0, None, 301):
        expected: list[set[int]] = [set() for _ in times[spoken]]
        for other, words in split.items():
            different = [
                place for place, (one, two) in enumerate(zip(words, split[spoken], strict=False)) if one != two
            ]
            if len(words) == len(split[spoken]) and len(different) == 1 and times[other] != times[spoken]:
                first = next(
                    i for i, (one, two) in enumerate(zip(times[other], times[spoken], strict=True)) if one != two
                )
                expected[first].add(different[0])
        assert decided(spoken, times[spoken]) == expected


def test_what_somebody_would_say_is_understood_and_nothing_else() -> None:
    """As by the listener of the other tests, who knows nothing of this code."""
    for spoken, written in spoken_pairs("validation", 400):
        assert written_for(spoken.split()) == written == hear(spoken)
    for nonsense in (
        "half to nine in the evening",
        "february thirtieth twenty ten",
        "the two hundred and",
        "five cents",
    ):
        assert written_for(nonsense.split()) is None


def test_every_pair_has_links_and_sure_ones_are_possible() -> None:
    found = list(spoken_alignments("test", 40, seed=1))
    assert [(spoken, written) for spoken, written, _ in found] == list(spoken_pairs("test", 40, seed=1))
    for spoken, written, links in found:
        assert links.sure <= links.possible
        assert {character for _, character in links.possible} == set(range(len(written)))
        assert {word for word, _ in links.possible} <= set(range(len(spoken.split())))
        assert len({character for _, character in links.sure}) == len(links.sure)
