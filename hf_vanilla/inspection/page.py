"""What a model attends to, as one HTML page that needs no network."""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
from markupsafe import Markup

from ..data.errors import InvalidDataError
from ..inference.alignments import AttentionMap
from ..inference.units import line_of
from ..pages import hash_of, rendered
from .attention import Attention
from .looking import Looking, Selection, cards_of, maps_with_mean
from .packing import LARGEST, packed
from .reading import KINDS, Kind
from .statistics import STATISTICS
from .tokens import Token, members_of_words

MAX_BYTES = 5_000_000
SHOWN = 5  # keys of a token in the table

SIDES: dict[Kind, tuple[str, str]] = {
    "encoder": ("source", "source"),
    "decoder": ("target", "read"),
    "cross": ("target", "source"),
}
"""Which tokens are the rows and the columns of a map."""


def page_of(looking: Looking, model: str, selection: Selection | None = None) -> str:
    """
    The page, with as many weights of each row as fit into it.

    Args:
        model: Its name.
    """
    selection = selection or Selection()
    shown = chosen(looking.attention, selection)
    if not shown:
        raise InvalidDataError("there is no such attention: choose other --kind, --layer or --head")
    places = [(kind, layer, heads) for kind, (layers, heads) in shown.items() for layer in layers]
    layers = [maps_with_mean(looking.attention, kind, layer) for kind, layer, _ in places]
    maps = [
        each
        for (weights, weighted), (_, _, heads) in zip(layers, places, strict=True)
        for each in (*weights[heads], weights[-1], weighted[-1])
    ]
    norms = np.concatenate([norms_of(looking.attention, kind, layer)[heads].ravel() for kind, layer, heads in places])
    cells, rows = sum(each.size for each in maps), sum(len(each) for each in maps)
    for largest in LARGEST:
        if (cells / 8 if largest is None else largest * rows) > MAX_BYTES and largest != LARGEST[-1]:
            continue  # it would take long to see that this does not fit
        facts = {**page_facts(looking, shown), "largest": largest}
        page = with_data(looking, model, facts, packed(maps, largest, norms))
        if len(page.encode()) <= MAX_BYTES:
            return page
    raise InvalidDataError(
        f"the page would have {len(page.encode()) / 1e6:.1f} MB, more than {MAX_BYTES / 1e6:.0f}, with the "
        f"{LARGEST[-1]} largest weights of each row alone: choose what to show with --kind, --layer or --head"
    )


def chosen(attention: Attention, selection: Selection) -> dict[Kind, tuple[list[int], list[int]]]:
    """For each kind the layers and heads that are asked for and there."""
    found: dict[Kind, tuple[list[int], list[int]]] = {}
    for kind in KINDS:
        number, heads = attention.maps.of(kind).shape[:2]
        layers = [layer for layer in range(number) if selection.layers is None or layer in selection.layers]
        of_layer = [head for head in range(heads) if selection.heads is None or head in selection.heads]
        if kind in selection.kinds and layers and (of_layer or selection.heads == ()):
            found[kind] = layers, of_layer
    return found


def norms_of(attention: Attention, kind: Kind, layer: int) -> np.ndarray:
    """What a weight of 1 would add, compared with the most in this layer: (heads, keys)."""
    weights, weighted = attention.maps.of(kind)[layer], attention.weighted.of(kind)[layer]
    norms: np.ndarray = weighted.max(1) / weights.max(1).clip(1e-30)
    return norms / max(float(norms.max()), 1e-30)


def page_facts(looking: Looking, shown: Mapping[Kind, tuple[list[int], list[int]]]) -> dict[str, Any]:
    attention, first = looking.attention, looking.first
    tokens = {
        "source": attention.source_tokens,
        "target": attention.target_tokens,
        "read": attention.read_tokens,
    }
    return {
        "tokens": {
            side: [[str(token), int(token.is_special), int(token.has_space)] for token in each]
            for side, each in tokens.items()
        },
        "words": {side: words_of(each) for side, each in tokens.items()},
        "kinds": {
            kind: {"layers": layers, "heads": heads, "rows": SIDES[kind][0], "columns": SIDES[kind][1]}
            for kind, (layers, heads) in shown.items()
        },
        "first": {"kind": "cross", "layer": first.layer, "head": first.head, "row": first.row},
        "parts": looking.parts.tolist(),
        "partLabels": labels_of(attention.source_tokens, looking.parts),
        "effect": None if looking.effect is None else np.round(looking.effect.astype(np.float64), 4).tolist(),
        "agreement": rounded(looking.agreement),
        "cards": {kind: cards_of(looking, kind) for kind in shown},
        "figures": STATISTICS,
    }


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


def words_of(tokens: Sequence[Token]) -> dict[str, Any]:
    """For each token the index of its word, and the words."""
    members = members_of_words(tokens)
    return {"of": members.tolist(), "labels": labels_of(tokens, members)}


def labels_of(tokens: Sequence[Token], groups: np.ndarray) -> list[list[Any]]:
    """The tokens of each group as one: its text, and whether it is special. Pieces of a character show it once."""
    labels: list[list[Any]] = [["", 0] for _ in range(int(groups.max()) + 1)]
    for token, group in zip(tokens, groups.tolist(), strict=True):
        labels[group][0] += token.text if token.piece < 2 else without_shared(labels[group][0], token.text)
        labels[group][1] |= int(token.is_special)
    return labels


def without_shared(before: str, text: str) -> str:
    """What a piece adds to the text before it, with which it shares a character."""
    return text[1:] if before.endswith(text[:1]) else text


def with_data(looking: Looking, model: str, facts: Mapping[str, Any], data: str) -> str:
    folder = files("hf_vanilla.inspection")
    style = (folder / "page.css").read_text(encoding="utf-8")
    script = "".join(
        (folder / name).read_text(encoding="utf-8") for name in ("page_maps.js", "page_views.js", "page.js")
    )
    attention = looking.attention
    return rendered(
        (folder / "page.html").read_text(encoding="utf-8"),
        model=model,
        source=line_of(attention.source),
        target=attention.target,
        score=attention.score,
        first=looking.first,
        begins_with_first=has_first(looking.first, facts["kinds"]),
        is_aligned=looking.is_aligned,
        rows=list(table_rows(looking)),
        shown=SHOWN,
        facts=Markup(json.dumps(facts, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")),  # noqa: S704
        data=data,
        style=Markup(style),  # noqa: S704 - it is our own file
        script=Markup(script),  # noqa: S704 - and so is this
        style_hash=hash_of(style),
        script_hash=hash_of(script),
    )


def has_first(first: AttentionMap, kinds: Mapping[str, Any]) -> bool:
    """Whether the map to begin with is in the page."""
    cross = kinds.get("cross", {"layers": [], "heads": []})
    return first.layer in cross["layers"] and (first.head is None or first.head in cross["heads"])


def table_rows(looking: Looking) -> Iterator[tuple[str, list[tuple[str, float]], float]]:
    """For each row of the first map its largest weights, and the rest."""
    attention, first = looking.attention, looking.first
    for token, row in zip(attention.target_tokens, first.of(with_last_row(looking)), strict=False):
        best = np.argsort(-row, kind="stable")[:SHOWN].tolist()
        largest = [(str(attention.source_tokens[key]), float(row[key])) for key in best]
        yield str(token), largest, max(0.0, 1 - sum(weight for _, weight in largest))


def with_last_row(looking: Looking) -> np.ndarray:
    """The maps of the first layer shown, whose last row, that of the end, `AttentionMap.of` would leave out."""
    weights = looking.attention.maps.cross[looking.first.layer]
    return np.concatenate([weights, weights[:, -1:]], axis=1) if looking.first.row == "output" else weights
