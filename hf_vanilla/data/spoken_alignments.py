"""
Which words make which characters of the quick-start task: the alignment that a model of it should find.

    the twenty third of march nineteen eighty four  ->  1984-03-23
    1 and 9: nineteen. 8: eighty. 4: four. 0 and 3: march. 2: twenty. 3: third. Hyphens: no word.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .spoken import CURRENCIES, MONTHS, SCALES, TENS, UNDER_TWENTY, ordinal, spoken_pairs

Link = tuple[int, int]
Words = Sequence[tuple[int, str]]
"""Words with their index in what was said."""

VALUES = {word: number for number, word in enumerate(UNDER_TWENTY)} | {w: 10 * n for n, w in enumerate(TENS) if n > 1}
CARDINALS = {ordinal(word): word for word in (*VALUES, *SCALES)}
HUNDREDTHS = {name for _, names in CURRENCIES.values() for name in names}
UNITS = {name for names, _ in CURRENCIES.values() for name in names}
LINKED_TO_NOTHING = {"and", "minute", "minutes", "o'clock"}


@dataclass
class GoldLinks:
    """
    Links (index of the word, index of the character).

    Args:
        sure: Where one word alone decides the character.
        possible: Links that are no errors: the sure ones, all words that decide a character together, and all words
            for a character that none decides (hyphens, colons, points, and zeros as in 305).
    """

    sure: set[Link] = field(default_factory=set)
    possible: set[Link] = field(default_factory=set)

    def number(self, words: Words, end: int, first: int) -> None:
        """A number, the last digit of which is in front of `end` and the first one at `first`."""
        for index, places in places_of(words):
            self.sure |= {(index, end - 1 - place) for place in places if end - 1 - place >= first}

    def two_digits(self, words: Words, start: int) -> None:
        """A number of two digits: "five" is 05."""
        if len(words) == 1:
            self.sure |= {(words[0][0], start), (words[0][0], start + 1)}
        elif words:
            self.sure |= {(words[0][0], start), (words[1][0], start + 1)}

    def together(self, words: Words, *characters: int) -> None:
        self.possible |= {(index, character) for index, _ in words for character in characters}


def spoken_alignments(split: str, size: int, seed: int = 0) -> Iterator[tuple[str, str, GoldLinks]]:
    """The pairs of `spoken_pairs`, each with its links."""
    for spoken, written in spoken_pairs(split, size, seed):
        yield spoken, written, gold_links(spoken, written)


def gold_links(spoken: str, written: str) -> GoldLinks:
    links, words = GoldLinks(), list(enumerate(spoken.split()))
    kind = (
        _date if written.count("-") == 2 else _time if ":" in written else _money if written[0] in CURRENCIES else _nth
    )
    kind(links, words, written)
    links.possible |= links.sure
    decided = {character for _, character in links.possible}
    links.together(words, *(character for character in range(len(written)) if character not in decided))
    return links


def places_of(words: Words) -> Iterator[tuple[int, list[int]]]:
    """For each word that names digits which powers of ten these stand for, from the last word to the first."""
    place, last = 0, -1
    for index, word in reversed(words):
        cardinal_word = CARDINALS.get(word, word)
        if cardinal_word in ("thousand", "million"):
            place = {"thousand": 3, "million": 6}[cardinal_word]
        elif cardinal_word == "hundred":
            place = place // 3 * 3 + 2
        elif cardinal_word in VALUES:
            value = VALUES[cardinal_word]
            places = [place] if value < 10 else [place + 1] if value >= 20 and last == place else [place, place + 1]
            yield index, places
            last = place


def _date(links: GoldLinks, words: Words, written: str) -> None:
    month = next(index for index, word in words if word in MONTHS)
    end_of_day = next(index for index, word in words if word in CARDINALS) + 1
    start_of_day = end_of_day - 1
    while start_of_day and words[start_of_day - 1][1] in VALUES:
        start_of_day -= 1
    year = words[max(month + 1, end_of_day) :]
    links.sure |= {(month, 5), (month, 6)}
    links.two_digits(words[start_of_day:end_of_day], 8)
    if "thousand" in dict(year).values():
        links.number(year, end=4, first=0)
    else:
        links.two_digits(year[:1], 0)
        links.two_digits(year[1:], 2)


def _time(links: GoldLinks, words: Words, written: str) -> None:
    """Hours are decided by all words but those of digital minutes: "quarter to nine in the evening" is 20:45."""
    sides = [index for index, word in words if word in ("past", "to")]
    meant = [(index, word) for index, word in words if word not in LINKED_TO_NOTHING]
    if sides:
        links.together([pair for pair in meant if pair[0] <= sides[0]], 3, 4)
        links.together([pair for pair in meant if pair[0] >= sides[0]], 0, 1)
        return
    part = next((index for index, word in words if word in ("a", "p", "in", "at")), len(words))
    links.together([*meant[:1], *(pair for pair in meant if pair[0] >= part)], 0, 1)
    links.two_digits([pair for pair in meant[1:] if pair[0] < part], 3)


def _money(links: GoldLinks, words: Words, written: str) -> None:
    unit = next(index for index, word in words if word in UNITS)
    whole, _, hundredths = written.partition(".")
    links.sure.add((unit, 0))
    links.together([pair for pair in words if pair[1] in HUNDREDTHS], 0)
    links.number(words[:unit], end=len(whole), first=1)
    links.two_digits([pair for pair in words[unit:] if pair[1] in VALUES], len(whole) + 1)


def _nth(links: GoldLinks, words: Words, written: str) -> None:
    end, last = len(written) - 2, words[-1][0]
    links.sure |= {(last, end), (last, end + 1)}
    links.number(words, end, first=0)
