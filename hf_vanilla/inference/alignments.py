"""
Which source words the words of a translation come from, read off the model's attention to the source.

A translation is read once more, all of it in one forward pass, however it was found. That gives the same attention as
the search had, without keeping track of the beams.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from ..data.errors import InvalidDataError
from ..data.tokenizer import Encoder
from .translator import Source
from .units import Membership, Unit, line_of, members_of_source, members_of_target, units_of

Link = tuple[int, int]
"""The index of a source unit and of a target unit, both counted from 0."""

Row = Literal["output", "input"]
"""Whose attention stands for a target token: of the position that predicts it, or of the next one, which reads it."""

MAX_TOKENS = 16_384
"""Padded tokens of a batch, of the longer side."""

MAX_CELLS = 2**25
"""Attention weights of a layer that are in memory at a time: 128 MB."""


class NoAlignmentError(InvalidDataError):
    """The model does not say which of its attention maps is an alignment."""


@dataclass(frozen=True)
class AttentionMap:
    """
    One attention map of the many that a model has.

    Args:
        layer: Of the decoder, from 0.
        head: From 0. None is the mean of all heads.
    """

    layer: int
    head: int | None = None
    row: Row = "output"

    def __str__(self) -> str:
        heads = "mean of all heads" if self.head is None else f"head {self.head + 1}"
        return f"layer {self.layer + 1}, {heads}, {self.row} row"


@dataclass(frozen=True)
class AlignmentSettings:
    """How a model's alignments are read: the value of `alignment` in its generation config."""

    attention: AttentionMap
    source_unit: Unit = "word"
    target_unit: Unit = "word"

    @classmethod
    def of(cls, model: PreTrainedModel) -> "AlignmentSettings":
        """What was chosen when the model was trained."""
        chosen = getattr(model.generation_config, "alignment", None)
        if chosen is None:
            raise NoAlignmentError(
                "the generation config of this model has no `alignment`, which says the attention map to read: it was "
                "trained by an earlier version of hf_vanilla, or elsewhere"
            )
        attention = AttentionMap(chosen["layer"], chosen["head"], chosen["row"])
        return cls(attention, chosen["source_unit"], chosen["target_unit"])


@dataclass(frozen=True)
class Alignment:
    """
    Args:
        source: The text whose units the first index counts; the parts of a source are separated by tabs.
        weights: (target units, source units), the attention of each target unit.
        outside: (target units,), the attention that is left: on the sentence end and on separators.
        links: For each target unit the source unit with the most attention. Without a link is a target unit that
            attends more to the sentence end, or a separator, than to any source unit.
    """

    source: str
    target: str
    weights: np.ndarray
    outside: np.ndarray
    links: tuple[Link, ...]

    def __str__(self) -> str:
        """In Pharaoh's format: source index, hyphen, target index."""
        return " ".join(f"{source}-{target}" for source, target in self.links)


@dataclass(frozen=True)
class Text:
    """A source and a target, their tokens, and which units these belong to."""

    source: Source
    target: str
    source_ids: Sequence[int]
    target_ids: Sequence[int]  # with <eos>
    source_members: Membership
    target_members: Membership
    index: int = field(compare=False)


class Aligner:
    """
    Aligns targets with their sources.

    Args:
        settings: Those of the model if not given.
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
        One alignment for each pair, in their order. An empty source or target has no links.

        Args:
            source_ids: What the model reads, if that is not just the encoded sources: with a prefix in front.
            target_ids: What the model found, if the targets are its own: it may segment a word as the tokenizer would
                not. With or without <eos>.
        """
        texts = self.texts(sources, targets, source_ids, target_ids)
        alignments = [nothing_aligned(text.source, text.target, self.settings) for text in texts]
        with reading_attention(self.model):
            for batch in batches([text for text in texts if has_units(text)], self.model, self.max_tokens):
                (attention,) = cross_attentions(self.model, batch, [self.settings.attention.layer])
                for text, weights in zip(batch, attention, strict=True):
                    of_text = map_of(weights, self.settings.attention, len(text.target_ids) - 1, len(text.source_ids))
                    alignments[text.index] = alignment_of(text, of_text)
        return alignments

    def texts(
        self,
        sources: Sequence[Source],
        targets: Sequence[str],
        source_ids: Sequence[Sequence[int]] | None = None,
        target_ids: Sequence[Sequence[int]] | None = None,
    ) -> list[Text]:
        source_ids = self.encoder.sources(sources) if source_ids is None else source_ids
        target_ids = self.encoder.targets(targets) if target_ids is None else target_ids
        return [
            self._text(*given, index)
            for index, given in enumerate(zip(sources, targets, source_ids, target_ids, strict=True))
        ]

    def _text(
        self, source: Source, target: str, source_ids: Sequence[int], target_ids: Sequence[int], index: int
    ) -> Text:
        eos = self.tokenizer.eos_token_id
        target_ids = [*(token for token in target_ids if token != eos), eos]
        source_members = members_of_source(self.tokenizer, source, source_ids, self.settings.source_unit)
        target_members = members_of_target(self.tokenizer, target, target_ids[:-1], self.settings.target_unit)
        return Text(source, target, source_ids, target_ids, source_members, target_members, index)


def has_units(text: Text) -> bool:
    return bool(text.source_members.number and text.target_members.number)


def nothing_aligned(source: Source, target: str, settings: AlignmentSettings) -> Alignment:
    line = line_of(source)
    rows, columns = len(units_of(target, settings.target_unit)), len(units_of(line, settings.source_unit))
    return Alignment(line, target, np.zeros((rows, columns), np.float32), np.ones(rows, np.float32), ())


def batches(texts: Sequence[Text], model: PreTrainedModel, max_tokens: int) -> Iterator[list[Text]]:
    """Pairs of similar length together. The longest first, so that a batch too large for memory fails at once."""
    remaining = sorted(texts, key=length_of, reverse=True)
    while remaining:
        longest = length_of(remaining[0])
        size = max(1, min(max_tokens // longest, MAX_CELLS // (model.config.num_heads * longest**2)))
        yield remaining[:size]
        remaining = remaining[size:]


def length_of(text: Text) -> int:
    return max(len(text.source_ids), len(text.target_ids))


@contextmanager
def reading_attention(model: PreTrainedModel) -> Iterator[None]:
    """In evaluation mode, with the implementation of attention that gives its weights; afterwards all is as before."""
    implementation = model.config._attn_implementation
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        model.set_attn_implementation("eager")
        with torch.no_grad():
            yield
    finally:
        model.set_attn_implementation(implementation)
        for module in training:
            module.training = True


def cross_attentions(model: PreTrainedModel, texts: Sequence[Text], layers: Iterable[int]) -> list[Tensor]:
    """
    For each of the layers (B, H, T, S), in float32: the attention of the positions that predict the target tokens.

    Only these are kept in memory. `output_attentions` would keep those of all layers, and of encoder and decoder to
    themselves.
    """
    kept: dict[int, Tensor] = {}
    decoder_layers = model.get_decoder().layers
    hooks = [
        decoder_layers[layer].cross_attn.register_forward_hook(
            lambda _module, _inputs, outputs, layer=layer: kept.update({layer: outputs[1].float()})
        )
        for layer in layers
    ]
    try:
        model.base_model(**inputs_of(model, texts), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return [kept[layer].cpu() for layer in layers]


def inputs_of(model: PreTrainedModel, texts: Sequence[Text]) -> dict[str, Tensor]:
    sources = padded([text.source_ids for text in texts], model.config.pad_token_id)
    mask = padded([[1] * len(text.source_ids) for text in texts], 0)
    targets = padded([text.target_ids for text in texts], model.config.pad_token_id)
    prepared: Any = model
    given = {
        "input_ids": sources,
        "attention_mask": mask,
        "decoder_input_ids": prepared.prepare_decoder_input_ids_from_labels(targets),
    }
    return {name: tensor.to(model.device) for name, tensor in given.items()}


def padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=filler)


def map_of(attention: Tensor, chosen: AttentionMap, targets: int, sources: int) -> np.ndarray:
    """(H, T, S) of a padded pair -> (target tokens without <eos>, source tokens)."""
    start = 0 if chosen.row == "output" else 1
    rows = attention[:, start : start + targets, :sources]
    return (rows.mean(0) if chosen.head is None else rows[chosen.head]).numpy()


def alignment_of(text: Text, attention: np.ndarray) -> Alignment:
    weights, outside, strongest = between_units(attention, text.source_members, text.target_members)
    return Alignment(line_of(text.source), text.target, weights, outside, links_of(weights, strongest))


def between_units(
    attention: np.ndarray, sources: Membership, targets: Membership
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    From tokens to units: the sum over the tokens of a source unit, the mean over those of a target unit.

    A source token of several units is shared out among them.

    Returns:
        The weights between units, what is left outside of source units, and the largest weight of a token outside.
    """
    shares = (1 / np.bincount(sources.tokens, minlength=attention.shape[1]).clip(1)).astype(np.float32)
    by_unit = np.zeros((len(attention), sources.number), np.float32)
    np.add.at(by_unit.T, sources.units, (attention * shares).T[sources.tokens])
    left = attention[:, ~sources.inside]
    rows = np.concatenate([by_unit, left.sum(1, keepdims=True), left.max(1, initial=0, keepdims=True)], 1)
    mean = np.zeros((targets.number, rows.shape[1]), np.float32)
    np.add.at(mean, targets.units, rows[targets.tokens])
    mean /= np.bincount(targets.units, minlength=targets.number).clip(1)[:, None]
    return mean[:, :-2], mean[:, -2], mean[:, -1]


def links_of(weights: np.ndarray, threshold: np.ndarray) -> tuple[Link, ...]:
    """For each row the column with the largest weight, if that is above the row's threshold."""
    best = weights.argmax(1)
    found = weights.max(1, initial=0) > threshold
    return tuple((int(best[target]), int(target)) for target in found.nonzero()[0])


def error_rate(found: Iterable[set[Link]], sure: Iterable[set[Link]], possible: Iterable[set[Link]]) -> float:
    """
    The alignment error rate of Och and Ney (2003): 1 - (|A & S| + |A & P|) / (|A| + |S|), over all pairs together.

    Args:
        possible: Links that are no errors, whether found or not. The sure ones are among them.
    """
    right = total = 0
    for links, needed, allowed in zip(found, sure, possible, strict=True):
        right += len(links & needed) + len(links & (allowed | needed))
        total += len(links) + len(needed)
    return 1 - right / total if total else 0.0
