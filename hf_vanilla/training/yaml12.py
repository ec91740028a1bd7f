"""
YAML 1.2: what a scalar without quotes is, by the core schema (https://yaml.org/spec/1.2.2/#103-core-schema).

PyYAML follows YAML 1.1, to which 1:30 is 90, 010 is 8, `no` is false and 5e-3 a string. Its scanner and parser are used
here, and only what a scalar means is replaced.
"""

import re
from collections.abc import Callable, Hashable
from typing import Any

import yaml

NULLS = ("", "~", "null", "Null", "NULL")
BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
INTEGER = r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"
NUMBER = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
NOT_FINITE = r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
# The first that matches is taken. Each with the characters that it may begin with.
SCHEMA = (
    ("null", "|".join(map(re.escape, NULLS)), ["", *"~nN"]),
    ("bool", "|".join(BOOLEANS), list("tTfF")),
    ("int", INTEGER, list("-+0123456789")),
    ("float", f"{NUMBER}|{NOT_FINITE}", list("-+.0123456789")),
)


def load(text: str) -> Any:
    """The value of a YAML document. Whatever is wrong with it is a `yaml.YAMLError`."""
    return yaml.load(text, _Loader)  # noqa: S506 -- it makes nothing but scalars, lists and dictionaries


def dump(value: Any) -> str:
    """`value` as YAML, with quotes around strings that a reader of YAML 1.1 or of 1.2 would take for something else."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _integer(text: str) -> int:
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text if base == 10 else text[2:], base)


def _float(text: str) -> float:
    return float(text.replace(".", "", 1) if text.lower().endswith(("inf", "nan")) else text)


def _mapping(loader: yaml.SafeLoader, node: yaml.Node) -> dict[Hashable, Any]:
    """Each key may be there once: PyYAML would take the last."""
    if not isinstance(node, yaml.MappingNode):
        raise _error("expected a mapping", node)
    values: dict[Hashable, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise _error(f"{key!r} cannot be a key", key_node)
        if key in values:
            raise _error(f"{key!r} is there twice", key_node)
        values[key] = loader.construct_object(value_node, deep=True)
    return values


def _scalar(value_of: Callable[[str], Any]) -> Callable[[yaml.SafeLoader, yaml.ScalarNode], Any]:
    def construct(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
        text = str(loader.construct_scalar(node))
        try:
            return value_of(text)
        except (ValueError, KeyError):
            raise _error(f"{text!r:.40} is no {node.tag.rpartition(':')[-1]}", node) from None

    return construct


def _error(problem: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}
    yaml_constructors = {
        "tag:yaml.org,2002:null": _scalar(lambda text: None),
        "tag:yaml.org,2002:bool": _scalar(BOOLEANS.__getitem__),
        "tag:yaml.org,2002:int": _scalar(_integer),
        "tag:yaml.org,2002:float": _scalar(_float),
        "tag:yaml.org,2002:str": yaml.SafeLoader.construct_yaml_str,
        "tag:yaml.org,2002:seq": yaml.SafeLoader.construct_yaml_seq,
        "tag:yaml.org,2002:map": _mapping,
        None: yaml.SafeLoader.construct_undefined,  # any other tag
    }


class _Dumper(yaml.SafeDumper):
    pass


for _kind, _pattern, _first in SCHEMA:
    _matching = re.compile(rf"(?:{_pattern})\Z")
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", _matching, _first)
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", _matching, _first)
