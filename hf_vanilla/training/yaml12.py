"""
YAML 1.2: what a scalar without quotes means, by the core schema (https://yaml.org/spec/1.2.2/#103-core-schema).

PyYAML follows YAML 1.1, in which 1:30 is 90, 010 is 8, `no` is false and 5e-3 a string. This module uses its parser and
replaces what scalars mean.
"""

import math
import re
from collections.abc import Callable, Hashable
from itertools import chain
from typing import Any

import yaml

MAX_VALUES = 100_000  # of a document


def _integer(text: str) -> int:
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text if base == 10 else text[2:], base)


def _float(text: str) -> float:
    return float(text.replace(".", "", 1) if text.lower().endswith(("inf", "nan")) else text)


NUMBER = r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
NOT_FINITE = r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
# Tag: its pattern, the characters that it may begin with, and its value. The first pattern that matches is taken.
SCHEMA: dict[str, tuple[str, list[str], Callable[[str], Any]]] = {
    "null": (r"null|Null|NULL|~|", ["", *"~nN"], lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", [*"tTfF"], lambda text: text.lower() == "true"),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", [*"-+0123456789"], _integer),
    "float": (f"{NUMBER}|{NOT_FINITE}", [*"-+.0123456789"], _float),
}


def load(text: str) -> Any:
    """The value of a YAML document. Whatever is wrong with it is a `yaml.YAMLError`."""
    try:
        root = yaml.compose(text, _Loader)
        if root is not None:
            _refuse_too_much(root)
        return yaml.load(text, _Loader)  # noqa: S506 -- it makes nothing but scalars, lists and dictionaries
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None


def _refuse_too_much(root: yaml.Node) -> None:
    """With aliases (*name) a short text can say more than any memory holds, or contain itself."""
    sizes: dict[yaml.Node, float] = {}

    def size_of(node: yaml.Node) -> float:
        if node not in sizes:
            sizes[node] = math.inf  # what contains itself has no size
            values = node.value if isinstance(node, yaml.CollectionNode) else []
            children = chain.from_iterable(values) if isinstance(node, yaml.MappingNode) else values
            sizes[node] = 1 + sum(map(size_of, children))
        return sizes[node]

    if size_of(root) > MAX_VALUES:
        raise _error(f"with its aliases it has more than {MAX_VALUES:,} values", root)


def dump(value: Any) -> str:
    """`value` as YAML, with quotes around strings that a reader of YAML 1.1 or of 1.2 would take for something else."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def dump_line(value: Any) -> str:
    """`dump` on a single line, to stand after a key."""
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "default_flow_style": True, "width": math.inf}
    return yaml.dump([value], Dumper=_Dumper, **options).strip()[1:-1]


def _mapping(loader: yaml.SafeLoader, node: yaml.Node) -> dict[Hashable, Any]:
    """A key may occur once only (PyYAML would silently take its last value)."""
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


def _scalar(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    kind, text = node.tag.rpartition(":")[-1], str(loader.construct_scalar(node))
    pattern, _, value_of = SCHEMA[kind]
    try:
        if re.fullmatch(pattern, text):
            return value_of(text)
    except ValueError:  # more digits than Python reads
        pass
    raise _error(f"{text!r:.40} is no {kind}", node)


def _error(problem: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}
    yaml_constructors = {
        **{f"tag:yaml.org,2002:{kind}": _scalar for kind in SCHEMA},
        "tag:yaml.org,2002:str": yaml.SafeLoader.construct_yaml_str,
        "tag:yaml.org,2002:seq": yaml.SafeLoader.construct_yaml_seq,
        "tag:yaml.org,2002:map": _mapping,
        None: yaml.SafeLoader.construct_undefined,  # any other tag is an error
    }


class _Dumper(yaml.SafeDumper):
    pass


for _kind, (_pattern, _first, _) in SCHEMA.items():
    _matching = re.compile(rf"(?:{_pattern})\Z")
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", _matching, _first)
    _Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", _matching, _first)
