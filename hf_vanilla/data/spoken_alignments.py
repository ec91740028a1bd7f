"""
Which words make which characters of the quick-start task: the links that a model of it should find.

    the twenty third of march nineteen eighty four  ->  1984-03-23

Two answers are computed, which know nothing of each other, and joined as it is usual for two annotators (Och and Ney
2003): what both say is sure, what one of them says is possible.

- The words that name a character. 1 and 9: nineteen. 8: eighty. 4: four. 0 and 3: march. 2: twenty. 3: third.
- The words that decide a character: another word in their place would have changed it, and none in front of it. The 1,
  but not the 9, is decided by nineteen (twenty eighty four is 2084), as all years that begin with 1 begin with 19.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, time
from functools import cache
from itertools import product, zip_longest

from .spoken import (
    CATEGORIES,
    CURRENCIES,
    FIRST_DATE,
    LAST_DATE,
    MONTHS,
    SCALES,
    TENS,
    UNDER_TWENTY,
    Money,
    ordinal,
    say_date,
    say_money,
    say_ordinal,
    say_time,
    say_year,
    spoken_pairs,
    write_money,
    write_ordinal,
)

Link = tuple[int, int]
"""The index of a word and that of a character, both from 0."""

Words = Sequence[tuple[int, str]]
"""Words with their index in what was said."""

Makers = list[set[int]]
"""For each character the indexes of the words that make it."""

NUMBERS = {word: number for number, word in enumerate(UNDER_TWENTY)} | {w: 10 * n for n, w in enumerate(TENS) if n > 1}
CARDINALS = {ordinal(word): word for word in (*NUMBERS, *SCALES)}
SIGNS = {name: sign for sign, (names, _) in CURRENCIES.items() for name in names}
HUNDREDTHS = {name for _, names in CURRENCIES.values() for name in names}
WITHOUT_DIGITS = {"and", "minute", "minutes", "o'clock"}


@dataclass(frozen=True)
class GoldLinks:
    """
    Args:
        sure: Where one word alone names the character, and it alone decides it.
        possible: All links that are no errors: of words that name or decide the character, or of any word if none
            names it or none decides it (as hyphens).
    """

    sure: frozenset[Link]
    possible: frozenset[Link]


def spoken_alignments(split: str, size: int, seed: int = 0) -> Iterator[tuple[str, str, GoldLinks]]:
    """The pairs of `spoken_pairs`, each with its links. A hundred pairs take a second."""
    for spoken, written in spoken_pairs(split, size, seed):
        yield spoken, written, gold_links(spoken, written)


def gold_links(spoken: str, written: str) -> GoldLinks:
    sure, possible, words = set(), set(), range(len(spoken.split()))
    for character, (naming, deciding) in enumerate(zip(named(spoken, written), decided(spoken, written), strict=True)):
        sure |= {(word, character) for word in naming if naming == deciding and len(naming) == 1}
        either = naming | deciding if naming and deciding else words
        possible |= {(word, character) for word in either}
    return GoldLinks(frozenset(sure), frozenset(possible))


# --- The words that name a character --------------------------------------------------------------------------------


def named(spoken: str, written: str) -> Makers:
    makers: Makers = [set() for _ in written]
    words = list(enumerate(spoken.split()))
    if written[0] in CURRENCIES:
        _name_money(makers, words, written)
    elif written.endswith(("st", "nd", "rd", "th")):
        _name_ordinal(makers, words)
    else:
        (_name_time if ":" in written else _name_date)(makers, words)
    return makers


def _name_date(makers: Makers, words: Words) -> None:
    month = next(index for index, word in words if word in MONTHS)
    end = next(index for index, word in words if word in CARDINALS) + 1
    day = [pair for pair in words[max(0, end - 2) : end] if pair[1] in NUMBERS or pair[1] in CARDINALS]
    year = words[max(month + 1, end) :]
    _name_together(makers, [words[month]], 5, 6)
    _name_two_digits(makers, day, 8)
    if any(word == "thousand" for _, word in year):
        _name_number(makers, year, first=0, end=4)
    else:
        _name_two_digits(makers, year[:1], 0)
        _name_two_digits(makers, year[1:], 2)


def _name_time(makers: Makers, words: Words) -> None:
    """In "quarter to nine in the evening", 20:45, "quarter to" names the minute, all but "quarter" the hour."""
    meant = [pair for pair in words if pair[1] not in WITHOUT_DIGITS]
    side = next((index for index, word in words if word in ("past", "to")), None)
    if side is not None:
        _name_together(makers, [pair for pair in meant if pair[0] <= side], 3, 4)
        _name_together(makers, [pair for pair in meant if pair[0] >= side], 0, 1)
    else:
        part = next((index for index, word in words if word in ("a", "p", "in", "at")), len(words))
        _name_together(makers, [*meant[:1], *(pair for pair in meant if pair[0] >= part)], 0, 1)
        _name_two_digits(makers, [pair for pair in meant[1:] if pair[0] < part], 3)


def _name_money(makers: Makers, words: Words, written: str) -> None:
    unit = next(index for index, word in words if word in SIGNS)
    point = len(written.partition(".")[0])
    _name_together(makers, [words[unit], *(pair for pair in words if pair[1] in HUNDREDTHS)], 0)
    _name_number(makers, words[:unit], first=1, end=point)
    _name_two_digits(makers, [pair for pair in words[unit:] if pair[1] in NUMBERS], point + 1)


def _name_ordinal(makers: Makers, words: Words) -> None:
    end = len(makers) - 2
    _name_number(makers, words, first=0, end=end)
    _name_together(makers, words[-1:], end, end + 1)


def _name_together(makers: Makers, words: Words, *characters: int) -> None:
    for character in characters:
        makers[character] |= {index for index, _ in words}


def _name_two_digits(makers: Makers, words: Words, start: int) -> None:
    """Both by one word ("five" is 05), or one each."""
    if words:
        _name_together(makers, words[:1], start)
        _name_together(makers, words[-1:], start + 1)


def _name_number(makers: Makers, words: Words, first: int, end: int) -> None:
    """From the last digit, in front of `end`, to the first. "twenty" names two, but in "twenty three" only the 2."""
    place = 0
    for index, word in reversed(words):
        word = CARDINALS.get(word, word)
        if word in ("thousand", "million"):
            place = {"thousand": 3, "million": 6}[word]
        elif word == "hundred":
            place = place // 3 * 3 + 2
        elif word in NUMBERS:
            for digit in range(place, place + (1 if NUMBERS[word] < 10 else 2)):
                if first <= end - 1 - digit and not makers[end - 1 - digit]:
                    makers[end - 1 - digit].add(index)


# --- The words that decide a character ------------------------------------------------------------------------------


def decided(spoken: str, written: str) -> Makers:
    """By trying every word of the task in the place of every word."""
    makers: Makers = [set() for _ in written]
    words = spoken.split()
    for index, word in product(range(len(words)), vocabulary()):
        other = written_for([*words[:index], word, *words[index + 1 :]])
        if other is not None and other != written:
            changed = (place for place, (one, new) in enumerate(zip_longest(written, other)) if one != new)
            if (first := next(changed)) < len(written):  # else the other one only goes on
                makers[first].add(index)
    return makers


@cache
def vocabulary() -> tuple[str, ...]:
    of_times = (word for spoken in _times() for word in spoken.split())
    return tuple(dict.fromkeys((*NUMBERS, *CARDINALS, *SCALES, *MONTHS, *SIGNS, *HUNDREDTHS, *of_times)))


def written_for(words: Sequence[str]) -> str | None:
    """How it is written, if somebody would say it."""
    guesses: tuple[Callable[[Sequence[str]], str | None], ...] = (_time, _date, _money, _ordinal)
    return next((written for guess in guesses if (written := guess(words)) is not None), None)


@cache
def _times() -> dict[str, str]:
    every_time = [time(hour, minute) for hour, minute in product(range(24), range(60))]
    return {spoken: CATEGORIES["time"].write(moment) for moment in every_time for spoken in say_time(moment)}


@cache
def _years() -> dict[str, int]:
    return {spoken: year for year in range(FIRST_DATE.year, LAST_DATE.year + 1) for spoken in say_year(year)}


@cache
def _days() -> dict[str, tuple[int, int]]:
    """Months and days, as they are said in front of the year."""
    leap_year = [date.fromordinal(date(2000, 1, 1).toordinal() + number) for number in range(366)]
    said = ((day, spoken.removesuffix(" two thousand")) for day in leap_year for spoken in say_date(day))
    return {spoken: (day.month, day.day) for day, spoken in said}


def _time(words: Sequence[str]) -> str | None:
    return _times().get(" ".join(words))


def _date(words: Sequence[str]) -> str | None:
    for length in range(2, len(words)):
        day, year = _days().get(" ".join(words[:length])), _years().get(" ".join(words[length:]))
        if day and year and (day != (2, 29) or (year % 4 == 0 and year != 1900)):
            return date(year, *day).isoformat()
    return None


def _money(words: Sequence[str]) -> str | None:
    unit = next((index for index, word in enumerate(words) if word in SIGNS), None)
    if unit is None:
        return None
    units = _number(words[:unit])
    hundredths = _number([word for word in words[unit + 1 :] if word not in HUNDREDTHS])
    if units is None or hundredths is None or not 0 < units < 10**7 or hundredths >= 100:
        return None
    money = Money(SIGNS[words[unit]], units, hundredths)
    return write_money(money) if " ".join(words) in say_money(money) else None


def _ordinal(words: Sequence[str]) -> str | None:
    if words[0] != "the" or words[-1] not in CARDINALS:
        return None
    number = _number([*words[1:-1], CARDINALS[words[-1]]])
    if number is None or not 0 < number < 10**4 or " ".join(words) not in say_ordinal(number):
        return None
    return write_ordinal(number)


def _number(words: Sequence[str]) -> int | None:
    total = group = 0
    for word in words:
        if word == "hundred":
            group *= 100
        elif word in SCALES:
            total, group = total + group * SCALES[word], 0
        elif word in NUMBERS:
            group += NUMBERS[word]
        elif word != "and":
            return None
    return total + group
