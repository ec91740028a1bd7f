"""The quick-start task, against answers written by hand and a listener that knows nothing of the speaker's code."""

import calendar
import re
from collections import Counter
from collections.abc import Iterator
from datetime import date, time
from itertools import islice, product
from random import Random
from typing import Any

import pytest

from hf_vanilla.data.spoken import CATEGORIES, LARGEST, SPLITS, Money, cardinal, split_of, spoken_pairs

# --- The listener: from the words alone to what they mean -----------------------------------------------------------

NUMBERS = {"zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8}
NUMBERS |= {"nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15}
NUMBERS |= {"sixteen": 16, "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40}
NUMBERS |= {"fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
ORDINALS = {"first": "one", "second": "two", "third": "three", "fourth": "four", "fifth": "five", "sixth": "six"}
ORDINALS |= {"seventh": "seven", "eighth": "eight", "ninth": "nine", "tenth": "ten", "eleventh": "eleven"}
ORDINALS |= {"twelfth": "twelve", "thirteenth": "thirteen", "fourteenth": "fourteen", "fifteenth": "fifteen"}
ORDINALS |= {"sixteenth": "sixteen", "seventeenth": "seventeen", "eighteenth": "eighteen", "nineteenth": "nineteen"}
ORDINALS |= {"twentieth": "twenty", "thirtieth": "thirty", "fortieth": "forty", "fiftieth": "fifty"}
ORDINALS |= {"sixtieth": "sixty", "seventieth": "seventy", "eightieth": "eighty", "ninetieth": "ninety"}
ORDINALS |= {"hundredth": "hundred", "thousandth": "thousand"}
MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_name) if name}
SIGNS = {"dollar": "$", "pound": "£", "euro": "€"}

MONTH, NTH = f"(?:{'|'.join(MONTHS)})", rf"(?:twenty |thirty )?(?:{'|'.join(ORDINALS)})"
DATE = re.compile(rf"(?:the (?P<nth>{NTH}) of )?(?P<month>{MONTH}) (?:(?:the )?(?P<later_nth>{NTH}) )?(?P<year>.+)")
MONEY = re.compile(
    r"(?P<units>.+) (?P<name>dollar|pound|euro)s?(?: and (?P<named>.+) (?:cents?|penny|pence)| (?P<bare>[a-z ]+))?"
)
HANDS = re.compile(r"(?P<minutes>.+?)(?: minutes?)? (?P<side>past|to) (?P<hour>\w+)(?: (?P<part>[a-z ]+))?")
DIGITS = re.compile(r"(?P<hour>\w+)(?: o'clock| (?P<minute>[a-z ]+?))? (?P<part>a m|p m|in the \w+|at night)")
PARTS_OF_DAY = {"a m": range(12), "in the morning": range(12), "p m": range(12, 24)}
PARTS_OF_DAY |= {"in the afternoon": range(12, 18), "in the evening": range(18, 21), "at night": range(21, 24)}


def number_of(words: str) -> int:
    total = group = 0
    for word in words.replace(" and ", " ").split():
        if word == "hundred":
            group *= 100
        elif word in ("thousand", "million"):
            total, group = total + group * {"thousand": 1_000, "million": 1_000_000}[word], 0
        else:
            group += NUMBERS[word]
    return total + group


def position_of(words: str) -> int:
    start, _, last = words.rpartition(" ")
    return number_of(f"{start} {ORDINALS[last]}")


def two_digits_of(words: str) -> int:
    """Under ten they begin with "oh"."""
    number = number_of(words.removeprefix("oh "))
    assert (number < 10) == words.startswith("oh "), words
    return number


def year_of(words: str) -> int:
    century, _, rest = words.partition(" ")
    if rest == "hundred" or rest.startswith("thousand"):
        return number_of(words)
    return 100 * number_of(century) + two_digits_of(rest)


def hear(spoken: str) -> str:
    """What was said, as it is written."""
    if found := DATE.fullmatch(spoken):
        day = position_of(found["nth"] or found["later_nth"])
        return f"{year_of(found['year'])}-{MONTHS[found['month']]:02}-{day:02}"
    if found := MONEY.fullmatch(spoken):
        whole = f"{SIGNS[found['name']]}{number_of(found['units'])}"
        hundredths = found["bare"] or found["named"]
        return f"{whole}.{number_of(hundredths):02}" if hundredths else whole
    if found := re.fullmatch("the (.+)", spoken):
        return with_suffix(position_of(found[1]))
    return f"{hear_time(spoken):%H:%M}"


def with_suffix(number: int) -> str:
    tens, ones = divmod(number % 100, 10)
    return f"{number}{'th' if tens == 1 or ones not in (1, 2, 3) else ('st', 'nd', 'rd')[ones - 1]}"


def hear_time(spoken: str) -> time:
    if spoken in ("noon", "midnight"):
        return time(12 if spoken == "noon" else 0)
    if found := HANDS.fullmatch(spoken):
        minutes = {"quarter": 15, "half": 30}.get(found["minutes"]) or number_of(found["minutes"])
        hour = {"noon": 12, "midnight": 0}.get(found["hour"])
        minutes += 60 * (number_of(found["hour"]) if hour is None else hour) - 2 * minutes * (found["side"] == "to")
        part = found["part"]
    else:
        found = DIGITS.fullmatch(spoken)
        assert found, spoken
        minutes, part = 60 * number_of(found["hour"]), found["part"]
        minutes += two_digits_of(found["minute"]) if found["minute"] else 0
    if part is not None:  # on a dial of twelve hours
        minutes = minutes % 720 + 720 * (part not in ("a m", "in the morning"))
        assert minutes // 60 in PARTS_OF_DAY[part], spoken
    return time(minutes // 60 % 24, minutes % 60)


# --- What the tests share -------------------------------------------------------------------------------------------

SHAPES = {
    "date": re.compile(r"\d{4}-\d\d-\d\d"),
    "time": re.compile(r"\d\d:\d\d"),
    "money": re.compile(r"[$£€][1-9]\d*(\.\d\d)?"),
    "ordinal": re.compile(r"[1-9]\d*(st|nd|rd|th)"),
}


def category_of(written: str) -> str:
    (category,) = (name for name, shape in SHAPES.items() if shape.fullmatch(written))
    return category


def every_time() -> list[time]:
    return [time(hour, minute) for hour, minute in product(range(24), range(60))]


def every_day_of_a_leap_year_and_a_day_of_every_year() -> Iterator[date]:
    yield from (date.fromordinal(date(2004, 1, 1).toordinal() + days) for days in range(366))
    yield from (date(year, 5, 20) for year in range(1900, 2100))


def sums_of_money() -> Iterator[Money]:
    for sign, units in product("$£€", [*range(1, 130), 200, 1_000, 1_001, 1_100, 9_999, 1_000_001, 9_999_999]):
        yield Money(sign, units, 0)
    for sign, units, hundredths in product("$£€", (1, 2, 20, 105, 9_999), range(1, 100)):
        yield Money(sign, units, hundredths)


# --- The speaker ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("category", "value", "written", "said"),
    [
        ("date", date(1984, 3, 23), "1984-03-23", "the twenty third of march nineteen eighty four"),
        ("date", date(1984, 3, 23), "1984-03-23", "march the twenty third nineteen eighty four"),
        ("date", date(1984, 3, 23), "1984-03-23", "march twenty third nineteen eighty four"),
        ("date", date(2005, 3, 23), "2005-03-23", "the twenty third of march two thousand and five"),
        ("date", date(2005, 3, 23), "2005-03-23", "the twenty third of march two thousand five"),
        ("date", date(2005, 3, 23), "2005-03-23", "march twenty third twenty oh five"),
        ("date", date(1900, 1, 1), "1900-01-01", "the first of january nineteen hundred"),
        ("date", date(1904, 2, 29), "1904-02-29", "february twenty ninth nineteen oh four"),
        ("date", date(2000, 8, 30), "2000-08-30", "august the thirtieth two thousand"),
        ("date", date(2021, 7, 12), "2021-07-12", "the twelfth of july twenty twenty one"),
        ("date", date(2020, 10, 20), "2020-10-20", "october twentieth twenty twenty"),
        ("date", date(2099, 12, 31), "2099-12-31", "the thirty first of december two thousand and ninety nine"),
        ("time", time(15, 30), "15:30", "half past three in the afternoon"),
        ("time", time(20, 45), "20:45", "quarter to nine in the evening"),
        ("time", time(6, 10), "06:10", "ten past six in the morning"),
        ("time", time(6, 10), "06:10", "ten minutes past six in the morning"),
        ("time", time(19, 5), "19:05", "seven oh five p m"),
        ("time", time(19, 5), "19:05", "seven oh five in the evening"),
        ("time", time(12, 0), "12:00", "noon"),
        ("time", time(12, 0), "12:00", "twelve p m"),
        ("time", time(0, 0), "00:00", "midnight"),
        ("time", time(0, 0), "00:00", "twelve a m"),
        ("time", time(0, 15), "00:15", "quarter past midnight"),
        ("time", time(0, 30), "00:30", "half past twelve in the morning"),
        ("time", time(11, 50), "11:50", "ten to noon"),
        ("time", time(11, 50), "11:50", "ten to twelve in the morning"),
        ("time", time(12, 45), "12:45", "quarter to one in the afternoon"),
        ("time", time(23, 50), "23:50", "ten to midnight"),
        ("time", time(23, 59), "23:59", "one minute to twelve at night"),
        ("time", time(8, 31), "08:31", "twenty nine minutes to nine in the morning"),
        ("time", time(21, 0), "21:00", "nine o'clock at night"),
        ("money", Money("$", 12, 50), "$12.50", "twelve dollars and fifty cents"),
        ("money", Money("£", 12, 50), "£12.50", "twelve pounds fifty"),
        ("money", Money("£", 305, 0), "£305", "three hundred and five pounds"),
        ("money", Money("£", 305, 0), "£305", "three hundred five pounds"),
        ("money", Money("€", 1_200_000, 0), "€1200000", "one million two hundred thousand euros"),
        ("money", Money("€", 1_000_001, 0), "€1000001", "one million and one euros"),
        ("money", Money("$", 1, 1), "$1.01", "one dollar and one cent"),
        ("money", Money("£", 1, 1), "£1.01", "one pound and one penny"),
        ("money", Money("£", 2, 2), "£2.02", "two pounds and two pence"),
        ("ordinal", 1, "1st", "the first"),
        ("ordinal", 11, "11th", "the eleventh"),
        ("ordinal", 22, "22nd", "the twenty second"),
        ("ordinal", 112, "112th", "the one hundred and twelfth"),
        ("ordinal", 112, "112th", "the one hundred twelfth"),
        ("ordinal", 2_000, "2000th", "the two thousandth"),
        ("ordinal", 9_803, "9803rd", "the nine thousand eight hundred and third"),
    ],
)
def test_a_value_is_written_and_said_as_people_do(category: str, value: Any, written: str, said: str) -> None:
    assert CATEGORIES[category].write(value) == written
    assert said in CATEGORIES[category].say(value)
    assert hear(said) == written


def test_five_pence_are_never_said_without_their_name() -> None:
    assert CATEGORIES["money"].say(Money("£", 2, 5)) == ["two pounds and five pence"]


def test_and_stands_before_the_last_two_digits_only() -> None:
    assert cardinal(1_100, " and ") == "one thousand one hundred"
    assert cardinal(305_012, " and ") == "three hundred and five thousand and twelve"


def test_no_way_to_say_a_value_is_listed_twice() -> None:
    for values, category in ((every_time(), "time"), (range(1, 10_000), "ordinal"), (sums_of_money(), "money")):
        for value in values:
            ways = CATEGORIES[category].say(value)
            assert len(set(ways)) == len(ways) > 0


def test_cardinals_mean_their_number() -> None:
    random = Random(3)  # noqa: S311
    numbers = [*range(1_100), *(random.randrange(10**7) for _ in range(5_000)), 10**6, 10**6 + 1, 10**7 - 1]
    for number in numbers:
        assert number_of(cardinal(number)) == number_of(cardinal(number, " and ")) == number


def test_every_way_to_say_a_value_is_heard_as_what_is_written() -> None:
    """So that one thing said never has two things written."""
    values = {
        "date": every_day_of_a_leap_year_and_a_day_of_every_year(),
        "time": every_time(),
        "money": sums_of_money(),
        "ordinal": range(1, 10_000),
    }
    for name, category in CATEGORIES.items():
        for value in values[name]:
            written = category.write(value)
            assert {hear(spoken) for spoken in category.say(value)} == {written}
            assert category_of(written) == name


def test_dates_are_those_of_the_calendar() -> None:
    random, last_days = Random(5), set()  # noqa: S311
    for _ in range(20_000):
        drawn = CATEGORIES["date"].draw(random)
        year, month, day = map(int, CATEGORIES["date"].write(drawn).split("-"))
        last_day = calendar.monthrange(year, month)[1]
        assert 1900 <= year <= 2099
        assert 1 <= day <= last_day
        if day == last_day:
            last_days.add((month, day))
    assert last_days == {(month, calendar.monthrange(2003, month)[1]) for month in range(1, 13)} | {(2, 29)}


def test_values_are_drawn_over_their_whole_range() -> None:
    random = Random(7)  # noqa: S311
    dates, times, money, ordinals = ([CATEGORIES[n].draw(random) for _ in range(20_000)] for n in CATEGORIES)
    assert {day.year for day in dates} == set(range(1900, 2100))
    assert set(times) == set(every_time())
    assert {sign: len(str(max(m.units for m in money if m.sign == sign))) for sign in "$£€"} == dict.fromkeys("$£€", 7)
    assert {m.hundredths for m in money} == set(range(100))
    assert min(m.units for m in money) == 1
    assert (min(ordinals), max(ordinals)) < (10, 10_000)
    assert max(ordinals) > 9_900


# --- The pairs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", SPLITS)
def test_pairs_are_distinct_and_heard_as_written(split: str) -> None:
    pairs = list(spoken_pairs(split, 1_500, seed=2))
    assert len({spoken for spoken, _ in pairs}) == len(pairs) == 1_500
    assert all(hear(spoken) == written for spoken, written in pairs)


def test_nothing_said_or_written_is_in_two_splits() -> None:
    sizes = {"train": 12_000, "validation": 800, "test": 800}
    said: dict[str, set[str]] = {split: set() for split in SPLITS}
    written: dict[str, set[tuple[str, str]]] = {split: set() for split in SPLITS}
    for split, seed in product(SPLITS, (0, 1)):
        for spoken, form in spoken_pairs(split, sizes[split], seed):
            said[split].add(spoken)
            written[split].add((category_of(form), form))
    for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        assert said[one].isdisjoint(said[other])
        assert written[one].isdisjoint(written[other])


@pytest.mark.parametrize(
    ("category", "values"), [("time", every_time()), ("ordinal", range(1, 10_000))], ids=["time", "ordinal"]
)
def test_splits_have_about_90_5_and_5_percent_of_a_category(category: str, values: list[Any]) -> None:
    count = Counter(split_of(category, CATEGORIES[category].write(value)) for value in values)
    shares = [count[split] / len(values) for split in SPLITS]
    assert shares == pytest.approx([0.9, 0.05, 0.05], abs=0.015)


@pytest.mark.parametrize(("split", "size"), [("train", 20_000), ("validation", 500), ("test", 500)])
def test_no_category_is_rare_or_most_of_a_split(split: str, size: int) -> None:
    count = Counter(category_of(written) for _, written in spoken_pairs(split, size))
    assert all(0.15 * size <= count[category] <= 0.35 * size for category in CATEGORIES)


def test_what_cannot_be_guessed_is_in_training() -> None:
    words = {word for spoken, _ in spoken_pairs("train", 8_000) for word in spoken.split()}
    for split in ("validation", "test"):
        assert words >= {word for spoken, _ in spoken_pairs(split, 500) for word in spoken.split()}
    assert split_of("time", "12:00") == split_of("time", "00:00") == "train"  # "noon" and "midnight" alone


@pytest.mark.parametrize("split", SPLITS)
def test_a_larger_size_begins_with_a_smaller_one(split: str) -> None:
    large = list(spoken_pairs(split, 500, seed=4))
    assert list(spoken_pairs(split, 200, seed=4)) == large[:200]
    assert list(islice(spoken_pairs(split, LARGEST[split], seed=4), 500)) == large
    assert list(spoken_pairs(split, 0, seed=4)) == []


def test_seeds_give_other_pairs_and_are_zero_unless_given() -> None:
    assert list(spoken_pairs("train", 50)) == list(spoken_pairs("train", 50, seed=0))
    assert set(spoken_pairs("train", 50)).isdisjoint(spoken_pairs("train", 50, seed=1))


def test_pairs_are_the_same_in_every_process() -> None:
    """Unlike what depends on Python's hash(), which every process salts anew."""
    assert {split: list(spoken_pairs(split, 3)) for split in SPLITS} == {
        "train": [
            ("ninety euros", "€90"),
            ("eleven thirty six at night", "23:36"),
            ("twenty past six in the evening", "18:20"),
        ],
        "validation": [
            ("the nine thousand two hundred ninety seventh", "9297th"),
            ("fourteen minutes past ten in the morning", "10:14"),
            ("the four thousand five hundred twenty third", "4523rd"),
        ],
        "test": [
            ("twenty to ten in the morning", "09:40"),
            ("november twenty seventh two thousand and seventy eight", "2078-11-27"),
            ("three hundred and six pounds and fifty seven pence", "£306.57"),
        ],
    }


# --- The errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "size", "message"),
    [
        ("dev", 1, r"split \('dev'\) must be one of train, validation, test"),
        ("train", -1, r"size \(-1\) must be between 0 and 100000"),
        ("test", 5_001, r"size \(5001\) must be between 0 and 5000, the most that split 'test' gives"),
        ("train", 10**12, r"size \(1000000000000\) must be between 0 and 100000"),
    ],
)
def test_impossible_requests_fail_before_the_first_pair(split: str, size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spoken_pairs(split, size)


def test_the_largest_size_can_be_had() -> None:
    assert sum(1 for _ in spoken_pairs("test", LARGEST["test"])) == LARGEST["test"]
