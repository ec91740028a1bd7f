"""The attention of a model to one source and one target, with names."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..data.errors import InvalidDataError
from ..inference.lines import Line
from ..inference.scoring import log_probabilities, normalised, start_token
from ..inference.search_settings import SearchSettings
from ..inference.translator import Source, Translator, well_formed
from .reading import KINDS, Kind, Maps, maps_of, reading
from .tokens import Token, nameless, source_tokens, target_tokens
from .weighted import added_by_heads, weighted_by_head, weighted_by_layer


@dataclass(frozen=True)
class Attention:
    """
    Args:
        source: Its parts.
        target: As the search found it, or as it was given.
        score: The log-probability of the target divided by the length penalty of the model's search.
        log_probabilities: Of each target token, given the source and the tokens before it.
        source_tokens: The keys of encoder and cross-attention, and the queries of the encoder.
        target_tokens: What the rows of decoder and cross-attention predict.
        read_tokens: What these rows read, the start token first: the keys of the decoder.
        maps: Attention weights. Each row adds up to 1.
        weighted: The norm of what each weight adds to its position: |alpha v W_O|.
        weighted_together: The same of all heads of a layer together: {kind: (layers, queries, keys)}.
    """

    source: tuple[str, ...]
    target: str
    score: float
    log_probabilities: list[float]
    source_ids: list[int]
    target_ids: list[int]
    source_tokens: list[Token]
    target_tokens: list[Token]
    read_tokens: list[Token]
    maps: Maps
    weighted: Maps
    weighted_together: dict[Kind, np.ndarray]

    def names(self, kind: Kind) -> tuple[list[str], list[str]]:
        """Of the rows and of the columns of a map. Rows of decoder and cross-attention: the tokens they predict."""
        rows = self.source_tokens if kind == "encoder" else self.target_tokens
        columns = self.read_tokens if kind == "decoder" else self.source_tokens
        return list(map(str, rows)), list(map(str, columns))


def attend(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    source: Source,
    target: str | None = None,
    *,
    prefix: str = "",
    **generation: Any,
) -> Attention:
    """
    What a model attends to while it writes the target, or would write it. Nothing of the model is changed afterwards.

    Args:
        source: A text, or its parts for a model with several.
        target: If not given, the model's own translation.
        prefix: What sources of this direction or task began with in the training.
        generation: Keys of the generation config for the search.
    """
    return attend_by(Translator(model, tokenizer), source, target, prefix=prefix, **generation)


def attend_by(
    translator: Translator, source: Source, target: str | None = None, *, prefix: str = "", **generation: Any
) -> Attention:
    """As `attend`, with a translator that knows how many parts a source has."""
    model, tokenizer = translator.model, translator.tokenizer
    parts = tuple(map(well_formed, translator.columns_of(source, 1)))
    if not any(part.strip() for part in parts):
        raise InvalidDataError("the source is empty: give a text")
    source_ids = of_allowed_length(translator.encoder.sources([parts], prefix)[0], "the source", translator)
    if target is None:
        ((found, *_),) = translator.search([Line(1, parts)], prefix=prefix, **generation)
        target, target_ids = found.text, found.token_ids
    elif generation:
        raise TypeError(f"{', '.join(generation)}: settings of a search, and the target is given")
    else:
        target = well_formed(target)
        target_ids = of_allowed_length(translator.encoder.targets([target])[0], "the target", translator)
    with reading(model):
        (each,) = log_probabilities(model, [source_ids], [target_ids], translator.max_tokens)
    exponent = SearchSettings(model.generation_config, translator.engine.positions, generation).length_penalty
    start = start_token(model)
    tokens = target_tokens(tokenizer, target, target_ids)
    (maps,) = maps_of(model, [source_ids], [target_ids])
    added = added_by_heads(model, source_ids, target_ids)
    return Attention(
        source=parts,
        target=target,
        score=normalised(math.fsum(each), len(each), exponent),
        log_probabilities=each,
        source_ids=source_ids,
        target_ids=target_ids,
        source_tokens=source_tokens(tokenizer, parts, source_ids),
        target_tokens=tokens,
        read_tokens=[nameless(tokenizer, start), *tokens[:-1]],
        maps=maps,
        weighted=weighted_by_head(maps, added),
        weighted_together={kind: weighted_by_layer(maps, added, kind) for kind in KINDS},
    )


def of_allowed_length(ids: list[int], what: str, translator: Translator) -> list[int]:
    """The ids, if there is no need to cut them: a text that was cut has other words than its tokens."""
    limit = translator.max_source_length
    if len(ids) > limit:
        raise InvalidDataError(f"{what} has {len(ids):,} tokens, more than the limit of {limit:,}: give a shorter one")
    return ids
