"""A scalar without quotes is what the core schema of YAML 1.2 says, when it is read and when it is written."""

import math
from typing import Any

import pytest
import yaml

from hf_vanilla.training import yaml12

EXAMPLE_10_9 = """\
A null: null
Booleans: [ true, True, false, FALSE ]
Integers: [ 0, 0o7, 0x3A, -19 ]
Floats: [
  0., -0.0, .5, +12e03, -2E+05 ]
Also floats: [
  .inf, -.Inf, +.INF, .NAN ]
"""
STRINGS = (
    # What YAML 1.1 or Python takes for something else, or is spelt almost right.
    *("yes", "no", "on", "off", "Yes", "NO", "y", "n", "tRUE", "nULL", "nan", "inf", ".nAn", "=", "<<", "a", "1 2"),
    *("1_000", "0b1", "0o8", "-0o7", "0xG", "+-1", "1:30", "190:20:30", "٣", "2001-01-01", "2001-12-14t21:59:43.10"),
    *(".", "e5", ".e5", "1.5.2", "1.5:30", "1_0.5", "-.nan", "+.NaN", "0x1.8", "1e", "1e5.5"),
)
CORE_SCHEMA: dict[str, Any] = {
    # 10.3.2
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict(
        zip(("0", "-19", "+7", "010", "-007", "0o10", "0x3A", "0xff"), (0, -19, 7, 10, -7, 8, 58, 255), strict=True)
    ),
    **dict(zip(("0.", "-0.0", ".5", "+12e03", "-2E+05"), (0.0, -0.0, 0.5, 12000.0, -200000.0), strict=True)),
    **dict(zip(("5e-3", "1e5", "1.e-9", "+.5e1", "010.5"), (0.005, 1e5, 1e-9, 5.0, 10.5), strict=True)),
    **dict.fromkeys((".inf", "+.Inf", ".INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.INF"), -math.inf),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **{text: text for text in STRINGS},
}


def same(found: Any, expected: Any) -> bool:
    return type(found) is type(expected) and (found == expected or math.isnan(found))


def test_the_example_of_the_specification() -> None:
    document = yaml12.load(EXAMPLE_10_9)
    assert math.isnan(document["Also floats"].pop())
    assert document == {
        "A null": None,
        "Booleans": [True, True, False, False],
        "Integers": [0, 7, 58, -19],
        "Floats": [0.0, -0.0, 0.5, 12000.0, -200000.0],
        "Also floats": [math.inf, -math.inf, math.inf],
    }
    assert [type(number) for number in document["Floats"]] == [float] * 5


@pytest.mark.parametrize(("text", "value"), CORE_SCHEMA.items(), ids=repr)
def test_scalars_of_the_core_schema(text: str, value: Any) -> None:
    assert same(yaml12.load(f"key: {text}")["key"], value)
    assert yaml12.load(f"key: '{text}'") == {"key": text}


@pytest.mark.parametrize("text", CORE_SCHEMA, ids=repr)
def test_a_written_string_is_a_string_to_readers_of_either_version(text: str) -> None:
    written = yaml12.dump({"key": text, text: 1})
    assert yaml12.load(written) == yaml.safe_load(written) == {"key": text, text: 1}


def test_written_values_are_read_as_they_were() -> None:
    values = [None, True, False, 0, -5, 2**70, 0.1, 1e-9, 1e300, -math.inf, [], {}, [[1], {"a": None}], "ü\n", "\x85 "]
    assert yaml12.load(yaml12.dump(values)) == values


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3", "'a' is there twice"),
        ("{1: a, 0x1: b}", "1 is there twice"),
        ("? [a]\n: b", "cannot be a key"),
        ("!!int x", "'x' is no int"),
        ("!!bool yes", "'yes' is no bool"),
        ("!!int 1_000", "'1_000' is no int"),
        ("!!float nan", "'nan' is no float"),
        ("!!null x", "'x' is no null"),
        ("9" * 5000, "is no int"),
        ("!!timestamp 2001-01-01", "could not determine a constructor for the tag"),
        ("!!python/name:os.system x", "could not determine a constructor for the tag"),
        ("!!map [a]", "expected a mapping"),
        ("a: [", "expected the node content"),
    ],
)
def test_what_is_no_document_is_one_error(text: str, problem: str) -> None:
    with pytest.raises(yaml.YAMLError, match=problem):
        yaml12.load(text)
