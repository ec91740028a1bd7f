"""What the attention heads of a model do over a corpus, and how much the model needs them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from ..data.errors import InvalidDataError
from ..evaluation.metrics import metrics_with, report
from ..inference.scoring import start_token
from ..inference.translator import Translator, translate_each
from ..run_directory import RECIPE
from .importance import (
    Importance,
    correlation_of_ranks,
    gradients_in_layers,
    importance_of_heads,
    losses,
    pruned,
)
from .masking import Head, heads_of, without_heads
from .pairs import PAIRS, Pairs, pairs_for, training_counts
from .reading import Kind, each_maps_of
from .redundancy import Divergences
from .statistics import HeadStatistics, Role, Traits, roles_of
from .syntax import Relation, read_conllu, relations_of, syntactic_heads

COMPARED_PAIRS = 50
"""So many pairs are enough to say which heads attend alike; with many heads each takes a while."""

SCORES = ("bleu", "exact_match")


@dataclass(frozen=True)
class Point:
    """A point of the pruning curve: how good the model is with the heads that are left."""

    heads_left: int
    loss: float
    scores: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Curves:
    """
    Args:
        order: All heads, the least important first: by gradient, see `gradients_in_layers`.
        points: From all heads to none, the least important taken out first.
        reverse: The same with the most important taken out first, as a control; without scores.
    """

    order: list[Head]
    points: list[Point]
    reverse: list[Point]


@dataclass(frozen=True)
class HeadReport:
    """
    Args:
        pairs: Over which it was made.
        loss: Of the whole model, per target token, mean over the pairs.
        statistics: Of each kind, (layers, heads) for each name in `STATISTICS`.
        nearest: For each head the head of its kind that attends most like it, and their divergence in bits.
        relations: If sentences with dependencies were given.
        curves: If they were asked for.
    """

    pairs: str
    loss: float
    statistics: dict[Kind, dict[str, np.ndarray]]
    importance: dict[Head, Importance]
    nearest: dict[Head, tuple[Head, float]]
    relations: list[Relation] | None = None
    curves: Curves | None = None

    def of(self, head: Head) -> dict[str, float]:
        """The statistics of a head, NaN where they are not known."""
        return {name: float(values[head.layer, head.head]) for name, values in self.statistics[head.kind].items()}

    def roles(self, head: Head) -> list[Role]:
        return roles_of(self.of(head))

    def relations_found(self, head: Head) -> list[Relation]:
        if head.kind != "encoder" or self.relations is None:
            return []
        return syntactic_heads(self.relations).get((head.layer, head.head), [])

    @property
    def agreement(self) -> dict[str, float]:
        """Spearman's correlations of the importance by gradient with that by masking, over all heads."""
        each = list(self.importance.values())
        gradient = [one.gradient for one in each]
        return {
            "means over the pairs": correlation_of_ranks(gradient, [one.absolute for one in each]),
            "medians over the pairs": correlation_of_ranks(
                [one.typical_gradient for one in each], [one.typical_change for one in each]
            ),
            "mean gradient, change of the mean loss": correlation_of_ranks(gradient, [one.masking for one in each]),
        }


def heads_report(
    run: Path,
    *,
    data: Path | None = None,
    conllu: Path | None = None,
    number: int = PAIRS,
    prune: bool = False,
    prefix: str = "",
) -> HeadReport:
    """
    Look at all heads of a run over its own validation pairs, or over others.

    Args:
        data: A source, a tab and a target in each line.
        conllu: Sentences with dependencies.
        number: Of the pairs.
        prune: Also take out more and more heads, and translate each time.
        prefix: What is read before each text of these files; of validation pairs, those with this prefix.
    """
    sentences = None if conllu is None else read_conllu(conllu)
    translator = Translator.from_pretrained(run, dtype=torch.float32)
    if sentences is not None and translator.columns > 1:
        raise InvalidDataError(
            f"{conllu}: has one text for each sentence, and {run} reads {translator.columns} columns"
        )
    options = scoring_of(run) if prune else {}
    pairs = pairs_for(run, translator, data, number, prefix)
    relations = None if sentences is None else relations_of(translator, sentences, prefix)
    counts = training_counts(run, translator.model)
    model = translator.model
    statistics, divergences = look_at(translator, pairs, counts)
    importance = importance_of_heads(model, pairs.source_ids, pairs.target_ids)
    return HeadReport(
        pairs.name,
        float(losses(model, pairs.source_ids, pairs.target_ids).mean()),
        statistics.as_dict(),
        importance,
        divergences.nearest(),
        relations,
        curves_of(translator, pairs, importance, options) if prune else None,
    )


def scoring_of(run: Path) -> dict[str, str]:
    """The tokenizer of BLEU, if the run's recipe says one: with it the run's own scores were measured."""
    try:
        recipe = yaml.safe_load((run / RECIPE).read_text(encoding="utf-8"))
        options = {"tokenize": recipe["training"]["bleu_tokenize"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError, yaml.YAMLError):  # no run of ours
        return {}
    try:
        metrics_with(options, SCORES)
    except ValueError as error:
        raise InvalidDataError(f"{run / RECIPE}: training.bleu_tokenize: {error}") from None
    return options


def look_at(
    translator: Translator, pairs: Pairs, counts: tuple[np.ndarray, np.ndarray] | None
) -> tuple[HeadStatistics, Divergences]:
    """What the attention of all heads is like: one forward pass over the pairs."""
    model = translator.model
    statistics, divergences = HeadStatistics(Traits(translator.tokenizer, start_token(model), counts)), Divergences()
    step = -(-len(pairs) // COMPARED_PAIRS)
    for place, maps in each_maps_of(model, pairs.source_ids, pairs.target_ids):
        statistics.add(maps, pairs.source_ids[place], pairs.target_ids[place])
        if place % step == 0:
            divergences.add(maps)
    return statistics, divergences


def curves_of(
    translator: Translator, pairs: Pairs, importance: dict[Head, Importance], options: Mapping[str, str]
) -> Curves:
    order = sorted(heads_of(translator.model), key=gradients_in_layers(importance).__getitem__)
    points = [point(translator, pairs, order, off, options) for off in pruned(order)]
    reverse = [point(translator, pairs, order, off) for off in pruned(order[::-1])]
    return Curves(order, points, reverse)


def point(
    translator: Translator,
    pairs: Pairs,
    heads: Sequence[Head],
    off: Sequence[Head],
    options: Mapping[str, str] | None = None,
) -> Point:
    """
    Args:
        options: Of the metrics. If not given, nothing is translated, and there are no scores.
    """
    scores: dict[str, Any] = {}
    with without_heads(translator.model, off):
        loss = float(losses(translator.model, pairs.source_ids, pairs.target_ids).mean())
        if options is not None:
            found = translate_each(translator, pairs.sources, pairs.prefixes)
            scores = report(found, pairs.targets, SCORES, **options)
    return Point(len(heads) - len(off), loss, {name: float(scores[name]) for name in scores if name in SCORES})
