"""
The embedded quick-start task: dates, times, money and ordinals, from how they are said to how they are written.

    the twenty third of march two thousand and five  ->  2005-03-23
    quarter to nine in the evening                   ->  20:45
    three hundred and five pounds                    ->  £305
    the one hundred and twelfth                      ->  112th

There are many ways to say a thing and one to write it, and what is written is a function of what is said.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, time
from itertools import product
from random import Random
from typing import Any, Generic, TypeVar

from .errors import InvalidDataError

SPLITS = ("train", "validation", "test")
LARGEST = {"train": 100_000, "validation": 5_000, "test": 5_000}  # there are no more different times and ordinals

FIRST_DATE, LAST_DATE = date(1900, 1, 1), date(2099, 12, 31)
MONTHS = "january february march april may june july august september october november december".split()  # noqa: SIM905
CURRENCIES = {
    "$": (("dollar", "dollars"), ("cent", "cents")),
    "£": (("pound", "pounds"), ("penny", "pence")),
    "€": (("euro", "euros"), ("cent", "cents")),
}
SCALES = {"million": 1_000_000, "thousand": 1_000, "hundred": 100}
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905
UNDER_TWENTY = (  # noqa: SIM905
    "zero one two three four five six seven eight nine "
    "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
).split()
IRREGULAR_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth"}
IRREGULAR_ORDINALS |= {"nine": "ninth", "twelve": "twelfth"}
QUARTERS: dict[int, list[str]] = {0: [], 15: ["quarter past"], 30: ["half past"], 45: ["quarter to"]}

Value = TypeVar("Value")


@dataclass(frozen=True)
class Category(Generic[Value]):
    """One kind of thing: how to draw one at random, how to write it, and all the ways to say it."""

    draw: Callable[[Random], Value]
    write: Callable[[Value], str]
    say: Callable[[Value], list[str]]


@dataclass(frozen=True)
class Money:
    """At least one unit: fifty cents alone could be dollars or euros."""

    sign: str
    units: int
    hundredths: int


def spoken_pairs(split: str, size: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """
    Yield `size` distinct pairs (spoken, written). The same arguments give the same ones, a larger size gives more.

    Every value is in one split only, with all the ways to say it: about 90, 5 and 5 % of the values of a category. So
    whatever the sizes and seeds, no spoken and no written form is in two splits.
    """
    if split not in SPLITS:
        raise InvalidDataError(f"split ({split!r}) must be one of {', '.join(SPLITS)}")
    if not 0 <= size <= LARGEST[split]:
        raise InvalidDataError(
            f"size ({size}) must be between 0 and {LARGEST[split]}, the most that split {split!r} gives"
        )
    return draw_pairs(split, size, Random(f"{split} {seed}"))  # noqa: S311


def draw_pairs(split: str, size: int, random: Random) -> Iterator[tuple[str, str]]:
    categories = list(CATEGORIES.items())
    drawn: set[str] = set()
    while len(drawn) < size:
        name, category = random.choice(categories)
        value = category.draw(random)
        written = category.write(value)
        if split_of(name, written) != split:
            continue
        spoken = random.choice(category.say(value))
        if spoken not in drawn:
            drawn.add(spoken)
            yield spoken, written


def split_of(category: str, written: str) -> str:
    """By a hash that is the same in every process and on every machine."""
    percent = int.from_bytes(hashlib.sha256(f"{category} {written}".encode()).digest()) % 100
    return "train" if percent < 90 else "validation" if percent < 95 else "test"


def cardinal(number: int, joint: str = " ") -> str:
    """1105 is "one thousand one hundred five"; `joint` is what stands before the last two digits, " " or " and "."""
    for name, scale in SCALES.items():
        if number >= scale:
            count, rest = divmod(number, scale)
            words = f"{cardinal(count, joint)} {name}"
            return f"{words}{joint if rest < 100 else ' '}{cardinal(rest, joint)}" if rest else words
    if number < 20:
        return UNDER_TWENTY[number]
    tens, ones = divmod(number, 10)
    return f"{TENS[tens]} {UNDER_TWENTY[ones]}" if ones else TENS[tens]


def say_cardinal(number: int) -> list[str]:
    """With and without "and", once if that is the same."""
    return list(dict.fromkeys((cardinal(number, " and "), cardinal(number))))


def ordinal(cardinal_words: str) -> str:
    """ "twenty three" to "twenty third": only the last word changes."""
    *words, last = cardinal_words.split()
    regular = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
    return " ".join([*words, IRREGULAR_ORDINALS.get(last, regular)])


def say_ordinal(number: int) -> list[str]:
    return [f"the {ordinal(words)}" for words in say_cardinal(number)]


def write_ordinal(number: int) -> str:
    is_teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def draw_date(random: Random) -> date:
    return date.fromordinal(random.randint(FIRST_DATE.toordinal(), LAST_DATE.toordinal()))


def say_date(day: date) -> list[str]:
    month, number = MONTHS[day.month - 1], ordinal(cardinal(day.day))
    starts = (f"the {number} of {month}", f"{month} the {number}", f"{month} {number}")
    return [f"{start} {year}" for start, year in product(starts, say_year(day.year))]


def say_year(year: int) -> list[str]:
    """In halves ("nineteen eighty four", "twenty oh five"), from 2000 on also as a number ("two thousand and five")."""
    century, rest = divmod(year, 100)
    if rest == 0:
        return ["nineteen hundred" if year == 1900 else "two thousand"]
    halves = f"{cardinal(century)} {two_digits(rest)}"
    return [halves] if year < 2000 else [halves, *say_cardinal(year)]


def two_digits(number: int) -> str:
    return f"oh {cardinal(number)}" if number < 10 else cardinal(number)


def draw_time(random: Random) -> time:
    return time(random.randrange(24), random.randrange(60))


def say_time(moment: time) -> list[str]:
    """As digits ("seven oh five p m") and as the hands of a clock ("five past seven in the evening")."""
    part, half = part_of_day(moment.hour), "a m" if moment.hour < 12 else "p m"
    digits = f"{hour_name(moment.hour)} {two_digits(moment.minute)}" if moment.minute else hour_name(moment.hour)
    hands, hour = say_minutes(moment.minute), moment.hour + (moment.minute > 30)
    ways = [f"{digits} {half}", f"{digits} {part}", *(f"{hand} {hour_name(hour)} {part}" for hand in hands)]
    if moment.minute == 0:
        ways.append(f"{digits} o'clock {part}")
    if hour % 12 == 0:
        name = "noon" if hour == 12 else "midnight"
        ways.extend([f"{hand} {name}" for hand in hands] or [name])
    return ways


def part_of_day(hour: int) -> str:
    """Of the time itself, not of the hour that is named: "ten to twelve in the morning" is 11:50."""
    if hour < 12:
        return "in the morning"
    return "in the afternoon" if hour < 18 else "in the evening" if hour < 21 else "at night"


def hour_name(hour: int) -> str:
    return cardinal(hour % 12 or 12)


def say_minutes(minute: int) -> list[str]:
    """The minute hand: past the hour, or to the next one if beyond the half hour; nothing at the full hour."""
    if minute in QUARTERS:
        return QUARTERS[minute]
    distance, side = (minute, "past") if minute < 30 else (60 - minute, "to")
    named = f"{cardinal(distance)} minute{'s' if distance > 1 else ''} {side}"
    return [named] if minute % 5 else [named, f"{cardinal(distance)} {side}"]


def draw_money(random: Random) -> Money:
    """Up to 9,999,999 units, or up to 9,999 with hundredths."""
    hundredths = random.choice((0, random.randint(1, 99)))
    return Money(random.choice(list(CURRENCIES)), draw_round(random, 4 if hundredths else 7), hundredths)


def draw_round(random: Random, most_digits: int) -> int:
    """A number of 1 to `most_digits` digits, half of them zero: as in usual prices, and hard, as zeros are not said."""
    number = random.randint(1, 9)
    for _ in range(random.randrange(most_digits)):
        number = 10 * number + random.choice((0, random.randint(1, 9)))
    return number


def say_money(money: Money) -> list[str]:
    """Ten hundredths or more may go without their name: "twelve pounds and fifty pence", "twelve pounds fifty"."""
    units, hundredths = CURRENCIES[money.sign]
    wholes = [f"{number} {units[money.units > 1]}" for number in say_cardinal(money.units)]
    if not money.hundredths:
        return wholes
    number = cardinal(money.hundredths)
    named = f" and {number} {hundredths[money.hundredths > 1]}"
    endings = [named, f" {number}"] if money.hundredths >= 10 else [named]
    return [whole + ending for whole, ending in product(wholes, endings)]


def write_money(money: Money) -> str:
    whole = f"{money.sign}{money.units}"
    return f"{whole}.{money.hundredths:02}" if money.hundredths else whole


CATEGORIES: dict[str, Category[Any]] = {
    "date": Category(draw_date, date.isoformat, say_date),
    "time": Category(draw_time, "{:%H:%M}".format, say_time),
    "money": Category(draw_money, write_money, say_money),
    "ordinal": Category(lambda random: random.randint(1, 9_999), write_ordinal, say_ordinal),
}
