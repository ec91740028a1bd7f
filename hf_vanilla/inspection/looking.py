"""What the page on one source and its target says, as data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from ..inference.alignments import AlignmentSettings, AttentionMap
from ..inference.scoring import start_token
from ..inference.translator import Translator
from ..inference.units import line_of
from ..run_directory import ALIGNMENT
from .attention import Attention, attend_by
from .effect import effect_of_hiding
from .figure import map_of
from .importance import correlation_of_ranks
from .reading import KINDS, Kind
from .statistics import HeadStatistics, Traits, roles_of
from .tokens import Token, members_of_words

MAX_HIDING = 2**21
"""Parts of a source times tokens of both texts squared: a minute for a base model on a CPU. Beyond, none is."""

ROWS = ("output", "input")


@dataclass(frozen=True)
class Selection:
    """Which maps are shown, beside the mean of the heads. None: all of them. Layers and heads from 0."""

    kinds: tuple[Kind, ...] = KINDS
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Looking:
    """
    Args:
        first: The map to begin with, of the attention to the source.
        is_aligned: Whether that one was chosen as the best alignment; else it is the mean of the last layer.
        parts: For each source token the index of the part that was hidden with it: its word.
        effect: (target tokens, parts), how much less the log-probability is without the part. None if not computed.
        agreement: For each layer, head (the mean is the last) and row: see `agreement_of`. Empty without effect.
        statistics: Of each kind, (layers, heads) for each name in `STATISTICS`, over this one pair.
    """

    attention: Attention
    first: AttentionMap
    is_aligned: bool
    parts: np.ndarray
    effect: np.ndarray | None
    agreement: list[list[dict[str, Any]]]
    statistics: dict[Kind, dict[str, np.ndarray]]


def look(translator: Translator, source: Any, target: str | None = None, **options: Any) -> Looking:
    """The options are those of `attend`."""
    attention = attend_by(translator, source, target, **options)
    first, is_aligned = first_map(translator.model)
    parts = parts_of(attention.source_tokens)
    effect = None
    work = (int(parts.max()) + 1) * (len(attention.source_ids) + len(attention.target_ids)) ** 2
    if parts.any() and work <= MAX_HIDING:
        effect = effect_of_hiding(translator.model, attention.source_ids, attention.target_ids, parts)
    statistics = HeadStatistics(Traits(translator.tokenizer, start_token(translator.model)))
    statistics.add(attention.maps, attention.source_ids, attention.target_ids)
    agreement = agreements(attention, effect, parts)
    return Looking(attention, first, is_aligned, parts, effect, agreement, statistics.as_dict())


def cards_of(looking: Looking, kind: Kind) -> list[list[dict[str, Any]]]:
    """For each layer and head the names of its roles, often none, and its statistics; None for what is not known."""
    values = looking.statistics[kind]
    layers, heads = next(iter(values.values())).shape
    each = [
        [{name: float(of[layer, head]) for name, of in values.items()} for head in range(heads)]
        for layer in range(layers)
    ]
    return [
        [
            {
                "roles": [role.name for role in roles_of(figures)],
                "figures": {name: None if math.isnan(value) else round(value, 3) for name, value in figures.items()},
            }
            for figures in layer
        ]
        for layer in each
    ]


def first_map(model: PreTrainedModel) -> tuple[AttentionMap, bool]:
    """The map that is the best alignment, as chosen after training; else the mean of the last layer."""
    if getattr(model.generation_config, ALIGNMENT, None) is None:
        return AttentionMap(model.config.decoder_layers - 1), False
    return AlignmentSettings.of(model).attention, True


def parts_of(tokens: Sequence[Token]) -> np.ndarray:
    """For each token the index of what is hidden together: words, or single tokens where there is one word at most."""
    words = {token.word for token in tokens if token.word is not None}
    return members_of_words(tokens) if len(words) > 1 else np.arange(len(tokens))


def agreements(attention: Attention, effect: np.ndarray | None, parts: np.ndarray) -> list[list[dict[str, Any]]]:
    """For each layer, for each head and for their mean: how far each row agrees with the effect."""
    if effect is None:
        return []
    return [
        [
            {
                row: {
                    "attention": agreement_of(weights[head], effect, parts, row),
                    "weighted": agreement_of(weighted[head], effect, parts, row),
                }
                for row in ROWS
            }
            for head in range(len(weights))
        ]
        for weights, weighted in (
            maps_with_mean(attention, "cross", layer) for layer in range(len(attention.maps.cross))
        )
    ]


def maps_with_mean(attention: Attention, kind: Kind, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Attention and value-weighted attention of a layer: (heads and all together, queries, keys). Rows add up to 1."""
    weights = attention.maps.of(kind)[layer]
    weighted = np.concatenate([attention.weighted.of(kind)[layer], attention.weighted_together[kind][None, layer]])
    sums = weighted.sum(-1, keepdims=True)
    shares = np.divide(weighted, sums, out=np.zeros_like(weighted), where=sums > 0)
    return np.concatenate([weights, weights.mean(0, keepdims=True)]), shares


def agreement_of(weights: np.ndarray, effect: np.ndarray, parts: np.ndarray, row: str) -> dict[str, float] | None:
    """
    Whether the weights say the same as the effect: for how many target tokens the part with the most weight has the
    largest effect, and the mean rank correlation (Spearman) over parts. Without the last token, which is the end.

    Args:
        weights: (queries, keys).
    """
    of_parts = np.zeros((len(weights), effect.shape[1]))
    np.add.at(of_parts.T, parts, weights.T)
    of_parts = of_parts[:-1] if row == "output" else of_parts[1:]
    effect = effect[: len(of_parts)]
    if not len(of_parts):
        return None
    same = float((of_parts.argmax(1) == effect.argmax(1)).mean())
    correlations = [correlation_of_ranks(*rows) for rows in zip(of_parts.tolist(), effect.tolist(), strict=True)]
    return {"same_top": same, "rank_correlation": float(np.nan_to_num(correlations).mean())}


def arrays_of(looking: Looking) -> dict[str, np.ndarray]:
    """Everything exactly, for a file of NumPy: nothing in it needs unpickling."""
    attention = looking.attention
    tokens = {"source": attention.source_tokens, "target": attention.target_tokens, "read": attention.read_tokens}
    arrays: dict[str, np.ndarray] = {
        **{str(kind): attention.maps.of(kind) for kind in KINDS},
        **{f"{kind}_weighted": attention.weighted.of(kind) for kind in KINDS},
        **{f"{kind}_weighted_together": attention.weighted_together[kind] for kind in KINDS},
        **{f"{side}_tokens": np.array([str(token) for token in each]) for side, each in tokens.items()},
        **{f"{side}_is_special": np.array([token.is_special for token in each]) for side, each in tokens.items()},
        "decoder_mask": np.tri(len(attention.target_ids), dtype=bool),
        "source_ids": np.array(attention.source_ids),
        "target_ids": np.array(attention.target_ids),
        "log_probabilities": np.array(attention.log_probabilities),
        "score": np.array(attention.score),
        "parts": looking.parts,
    }
    return arrays if looking.effect is None else arrays | {"effect": looking.effect}


def facts_of(looking: Looking, kind: Kind = "cross", shown: AttentionMap | None = None) -> dict[str, Any]:
    """
    For `--json`: one map in numbers; the page and the arrays have all of them.

    Args:
        shown: Which map of the kind; the first one if not given.
    """
    attention, shown = looking.attention, shown or looking.first
    maps = attention.maps.of(kind)
    # The encoder has no row of the target's end, which `AttentionMap.of` leaves out.
    weights = map_of(attention, kind, shown.layer, shown.head) if kind == "encoder" else shown.of(maps[shown.layer])
    agreement: Mapping[str, Any] | None = None
    if looking.agreement and kind == "cross":
        agreement = looking.agreement[shown.layer][-1 if shown.head is None else shown.head][shown.row]
    return {
        "source": line_of(attention.source),
        "target": attention.target,
        "score": attention.score,
        "source_tokens": list(map(str, attention.source_tokens)),
        "target_tokens": list(map(str, attention.target_tokens)),
        "log_probabilities": attention.log_probabilities,
        "map": {
            "kind": kind,
            "layer": shown.layer + 1,
            "head": "mean" if shown.head is None else shown.head + 1,
            "row": None if kind == "encoder" else shown.row,
            "is_aligned": looking.is_aligned and kind == "cross" and shown == looking.first,
            "weights": [[round(float(weight), 6) for weight in row] for row in weights],
        },
        "agreement_with_effect": agreement,
    }
