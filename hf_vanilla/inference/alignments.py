"""
Which source words the words of a target come from, read off the model's attention to the source.

A target is read once more, all of it in one forward pass, however it was found: the attention is the same as in the
search, and nobody has to keep track of beams.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..data.errors import InvalidDataError
from ..data.tokenizer import Encoder
from ..run_directory import ALIGNMENT, GENERATION_CONFIG
from .batching import batches_by_length, mask_of, padded
from .translator import Source
from .units import Membership, Unit, members_of_source, members_of_target

Link = tuple[int, int]
"""The index of a source unit and that of a target unit, both from 0."""

Key = TypeVar("Key")

Row = Literal["output", "input"]
"""Whose attention is that of a target token: of the position that predicts it, or of the next one, which reads it."""

MAX_TOKENS = 16_384
"""Padded tokens of a batch, of the longer side."""

MAX_WEIGHTS = 2**25
"""Attention weights of a layer that are in memory at a time, unless a single pair has more: 128 MB."""


@dataclass(frozen=True)
class AttentionMap:
    """
    One of the attention maps of a decoder.

    Args:
        layer: From 0.
        head: From 0. None is the mean of all heads.
    """

    layer: int
    head: int | None = None
    row: Row = "output"

    def of(self, attention: np.ndarray) -> np.ndarray:
        """From (H, T, S) of its layer to (target tokens, source tokens). The last row of T is that of <eos>."""
        rows = attention[:, :-1] if self.row == "output" else attention[:, 1:]
        chosen: np.ndarray = rows.mean(0) if self.head is None else rows[self.head]
        return chosen


@dataclass(frozen=True)
class AlignmentSettings:
    """What is read as a model's alignment, and what its indexes count."""

    attention: AttentionMap
    source_unit: Unit = "word"
    target_unit: Unit = "word"

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self:
        """What was chosen when the model was trained."""
        chosen = getattr(model.generation_config, ALIGNMENT, None)
        if chosen is None:
            raise InvalidDataError(
                f"this model has no {ALIGNMENT!r} in its {GENERATION_CONFIG}, where training writes which attention "
                "map to read: finish its run again (`hf-vanilla train RUN/recipe.yaml --output RUN` chooses a map and "
                "does not train a second time), or give Aligner the settings"
            )
        attention = AttentionMap(chosen["layer"], chosen["head"], chosen["row"])
        return cls(attention, chosen["source_unit"], chosen["target_unit"])

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self.attention), "source_unit": self.source_unit, "target_unit": self.target_unit}


@dataclass(frozen=True)
class Alignment:
    """
    Args:
        weights: (target units, source units), the attention of each target unit.
        outside: (target units,), the rest of it: on <eos>, separators, and a prefix. Together with the weights 1, but
            for white space, which has no attention.
        links: For each target unit the source unit with the most attention. In the order of the target.
    """

    weights: np.ndarray
    outside: np.ndarray
    links: tuple[Link, ...]

    def __str__(self) -> str:
        """In the format of Pharaoh: "0-0 2-1", source index and target index."""
        return " ".join(f"{source}-{target}" for source, target in self.links)


@dataclass(frozen=True)
class EncodedPair:
    """
    Args:
        index: Where the pair stands among those that were given.
        target_ids: With <eos>.
    """

    index: int
    source_ids: Sequence[int]
    target_ids: Sequence[int]
    sources: Membership
    targets: Membership

    @property
    def length(self) -> int:
        return max(len(self.source_ids), len(self.target_ids))


class Aligner:
    """
    Aligns targets with their sources. Nothing of the model is changed afterwards.

    Args:
        settings: If not given, those that were chosen when the model was trained.
        max_tokens: Padded tokens of a batch, of the longer side.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        settings: AlignmentSettings | None = None,
        max_tokens: int = MAX_TOKENS,
    ):
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings or AlignmentSettings.of(model)
        self.encoder = Encoder(tokenizer)
        self.max_tokens = max_tokens

    def align(
        self,
        sources: Sequence[Source],
        targets: Sequence[str],
        *,
        source_ids: Sequence[Sequence[int]] | None = None,
        target_ids: Sequence[Sequence[int]] | None = None,
    ) -> list[Alignment]:
        """
        An alignment for each pair, in their order. An empty source or target has no links, nor has a target for which
        there are too few learned positions.

        Args:
            source_ids: What the model reads, if these are not just the encoded sources, but with a prefix in front.
            target_ids: What the model found, if the targets are its own: it may segment a word in another way than the
                tokenizer does. With <eos> or without.
        """
        pairs = self.encode(sources, targets, source_ids, target_ids)
        alignments = [
            Alignment(np.zeros((pair.targets.number, pair.sources.number)), np.zeros(pair.targets.number), ())
            for pair in pairs
        ]
        for pair, (attention,) in cross_attentions(self.model, pairs, [self.settings.attention.layer], self.max_tokens):
            weights, outside = between_units(self.settings.attention.of(attention), pair.sources, pair.targets)
            alignments[pair.index] = Alignment(weights, outside, links_of(weights))
        return alignments

    def encode(
        self,
        sources: Sequence[Source],
        targets: Sequence[str],
        source_ids: Sequence[Sequence[int]] | None = None,
        target_ids: Sequence[Sequence[int]] | None = None,
    ) -> list[EncodedPair]:
        source_ids = self.encoder.sources(sources) if source_ids is None else source_ids
        target_ids = self.encoder.targets(targets) if target_ids is None else target_ids
        eos = self.tokenizer.eos_token_id
        pairs: list[EncodedPair] = []
        for source, target, read, found in zip(sources, targets, source_ids, target_ids, strict=True):
            text = [token for token in found if token != eos]
            source_members = members_of_source(self.tokenizer, source, read, self.settings.source_unit)
            target_members = members_of_target(self.tokenizer, target, text, self.settings.target_unit)
            if not self._reads(text):
                target_members = replace(target_members, inside=np.zeros_like(target_members.inside))
            pairs.append(EncodedPair(len(pairs), read, [*text, eos], source_members, target_members))
        return pairs

    def _reads(self, text: Sequence[int]) -> bool:
        """Whether there are learned positions enough for the attention of each token. Sinusoidal ones always are."""
        positions = positions_of(self.model)
        is_read = self.settings.attention.row == "input"  # the last token, too, behind the start token
        return positions is None or len(text) + is_read <= positions


def cross_attentions(
    model: PreTrainedModel, pairs: Iterable[EncodedPair], layers: Sequence[int], max_tokens: int = MAX_TOKENS
) -> Iterator[tuple[EncodedPair, list[np.ndarray]]]:
    """
    Each pair that has source and target tokens, with the attention of the layers: (H, T, S), in float32.

    Only the attention of a batch, and of these layers, is in memory. `output_attentions` would keep that of all layers,
    and that of encoder and decoder to themselves.
    """
    filled = [pair for pair in pairs if pair.sources.inside.any() and pair.targets.inside.any()]
    for batch in batches(filled, model.config.num_heads, max_tokens):
        with reading_attention(model), recorded(model, layers) as attentions:
            model.base_model(**inputs_of(model, batch), use_cache=False)
        for row, pair in enumerate(batch):
            size = len(pair.target_ids), len(pair.source_ids)
            yield pair, [with_row_of_eos(attentions[layer][row, :, : size[0], : size[1]], size[0]) for layer in layers]


def with_row_of_eos(attention: Tensor, rows: int) -> np.ndarray:
    """What no position was left for has no attention: <eos> behind a target that was cut at the limit."""
    return nn.functional.pad(attention, (0, 0, 0, rows - attention.shape[1])).numpy()


def batches(pairs: Sequence[EncodedPair], heads: int, max_tokens: int) -> Iterator[list[EncodedPair]]:
    """Pairs of similar length together."""
    lengths = [pair.length for pair in pairs]
    for places in batches_by_length(lengths, max_tokens, max_weights=MAX_WEIGHTS // heads):
        yield [pairs[place] for place in places]


@contextmanager
def reading_attention(model: PreTrainedModel) -> Iterator[None]:
    """In evaluation mode, and with the implementation of attention that gives its weights. Restored afterwards."""
    implementation = model.config._attn_implementation
    in_training = [module for module in model.modules() if module.training]
    try:
        for module in in_training:
            module.training = False
        model.set_attn_implementation("eager")
        with torch.no_grad():
            yield
    finally:
        model.set_attn_implementation(implementation)
        for module in in_training:
            module.training = True


@contextmanager
def recorded(model: PreTrainedModel, layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """The attention to the source of the last forward pass, by layer: (B, H, T, S)."""
    stack: Any = model.get_decoder()
    with weights_of({layer: stack.layers[layer].cross_attn for layer in layers}) as attentions:
        yield attentions


@contextmanager
def weights_of(modules: Mapping[Key, nn.Module]) -> Iterator[dict[Key, Tensor]]:
    """The attention weights of some modules in the last forward pass: (B, H, T, S), in float32."""
    attentions: dict[Key, Tensor] = {}

    def keep(key: Key) -> Callable[[nn.Module, Any, tuple[Tensor, Tensor]], None]:
        def hook(module: nn.Module, inputs: Any, outputs: tuple[Tensor, Tensor]) -> None:
            attentions[key] = outputs[1].detach().float().cpu()

        return hook

    hooks = [module.register_forward_hook(keep(key)) for key, module in modules.items()]
    try:
        yield attentions
    finally:
        for hook in hooks:
            hook.remove()


def inputs_of(model: Any, pairs: Sequence[EncodedPair]) -> dict[str, Tensor]:
    padding, device = model.config.pad_token_id, model.device
    sources = [pair.source_ids for pair in pairs]
    targets = padded([pair.target_ids for pair in pairs], padding, device)
    return {
        "input_ids": padded(sources, padding, device),
        "attention_mask": mask_of(sources, device),
        "decoder_input_ids": model.prepare_decoder_input_ids_from_labels(targets)[:, : positions_of(model)],
    }


def positions_of(model: PreTrainedModel) -> int | None:
    """How many learned positions there are; None if positions are not learned."""
    is_learned = model.config.position_embedding_type == "learned"
    return model.config.max_position_embeddings if is_learned else None


def between_units(attention: np.ndarray, sources: Membership, targets: Membership) -> tuple[np.ndarray, np.ndarray]:
    """
    From tokens to units: the sum over the tokens of a source unit, the mean over those of a target unit.

    Args:
        attention: (..., target tokens, source tokens). A source token of several units is shared out among them.

    Returns:
        (..., target units, source units), and what is left for tokens outside of all units: (..., target units).
    """
    of_tokens = np.moveaxis(attention, -1, 0)
    shared = of_tokens / _counts(sources.tokens, len(of_tokens)).reshape(-1, *[1] * (attention.ndim - 1))
    of_units = np.concatenate([_summed(shared, sources), of_tokens[~sources.inside].sum(0, keepdims=True)])
    summed = np.moveaxis(_summed(np.moveaxis(of_units, -1, 0), targets), (0, 1), (-2, -1))
    mean = summed / _counts(targets.units, targets.number)[:, None]
    return mean[..., :-1], mean[..., -1]


def _summed(tokens: np.ndarray, members: Membership) -> np.ndarray:
    """The sum over the tokens, on the first axis, of each unit."""
    units = np.zeros((members.number, *tokens.shape[1:]), tokens.dtype)
    np.add.at(units, members.units, tokens[members.tokens])
    return units


def _counts(indexes: np.ndarray, number: int) -> np.ndarray:
    return np.bincount(indexes, minlength=number).clip(1).astype(np.float32)


def links_of(weights: np.ndarray) -> tuple[Link, ...]:
    """For each target unit, which are rows, the source unit with the most weight."""
    if not weights.size:
        return ()
    best = weights.argmax(1).tolist()
    return tuple((best[target], target) for target in np.flatnonzero(weights.max(1)).tolist())


def error_rate(found: Iterable[set[Link]], sure: Iterable[set[Link]], possible: Iterable[set[Link]]) -> float:
    """
    The alignment error rate of Och and Ney (2003): 1 - (|A & S| + |A & P|) / (|A| + |S|), over all pairs together.

    Args:
        found: A.
        sure: S, the links that there must be.
        possible: P, the links that are no errors. The sure ones are always among them.
    """
    right = total = 0
    for links, needed, allowed in zip(found, sure, possible, strict=True):
        right += len(links & needed) + len(links & (allowed | needed))
        total += len(links) + len(needed)
    return 1 - right / total if total else 0.0
