"""Vectors of tokens and of whole texts: the states of the encoder."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..data.corpus import lines_of, text_of
from ..data.errors import InvalidDataError
from ..inference.alignments import MAX_TOKENS, reading_attention
from ..inference.batching import batches_by_length, mask_of, padded
from ..inference.translator import Translator
from ..inference.units import line_of
from .pairs import pairs_for

Pool = Literal["mean", "first", "last"]
"""The vector of a text: the mean of those of its tokens, special ones left out; or that of the first or last token."""

POOLS: tuple[Pool, ...] = get_args(Pool)


@dataclass(frozen=True)
class Texts:
    """
    Args:
        name: Where they come from.
        ids: What the model reads, with prefix and <eos>.
    """

    name: str
    sources: list[tuple[str, ...]]
    ids: list[list[int]]


@dataclass(frozen=True)
class Vectors:
    """
    Args:
        layer: From 0, of the encoder.
        of_texts: (texts, d_model), in float32.
        of_tokens: For each text (tokens, d_model), without padding.
    """

    texts: Texts
    layer: int
    pool: Pool
    of_texts: np.ndarray
    of_tokens: list[np.ndarray]


def vectors_for(
    run: Path, *, layer: int | None = None, pool: Pool = "mean", data: Path | None = None, prefix: str = ""
) -> Vectors:
    """
    Vectors of the texts of a file, or of the sources of the run's own validation pairs.

    Args:
        layer: From 0. The last one if not given.
        data: A source in each line. A further column, the target, is not read.
        prefix: What is read before each source of the file; of validation pairs, those with this prefix.
    """
    # In float64 a text has the same vector alone and in every batch, beyond what float32 can show.
    translator = Translator.from_pretrained(run, dtype=torch.float64)
    return vectors_of(translator, texts_for(run, translator, data, prefix), layer, pool)


def vectors_of(translator: Translator, texts: Texts, layer: int | None = None, pool: Pool = "mean") -> Vectors:
    model, special = translator.model, set(translator.tokenizer.all_special_ids)
    layers = len(encoder_layers(model))
    layer = layers - 1 if layer is None else layer
    if not 0 <= layer < layers:
        raise InvalidDataError(f"--layer {layer + 1}: the encoder has the layers 1 to {layers}")
    of_tokens = [np.zeros(0)] * len(texts.ids)
    for place, states in states_of(model, texts.ids):
        of_tokens[place] = states[layer + 1]
    pooled = [pooled_by(pool, each, ids, special) for each, ids in zip(of_tokens, texts.ids, strict=True)]
    return Vectors(
        texts, layer, pool, np.stack(pooled).astype(np.float32), [each.astype(np.float32) for each in of_tokens]
    )


def pooled_by(pool: Pool, states: np.ndarray, ids: Sequence[int], special: set[int]) -> np.ndarray:
    """From (tokens, d_model) to (d_model,)."""
    if pool == "mean":
        of_text = [place for place, token in enumerate(ids) if token not in special]
        mean: np.ndarray = states[of_text or slice(None)].mean(0)  # a text of special tokens alone has no others
        return mean
    chosen: np.ndarray = states[0 if pool == "first" else -1]
    return chosen


def texts_for(run: Path, translator: Translator, file: Path | None = None, prefix: str = "") -> Texts:
    """The texts of a file; without one, the sources of the run's own validation."""
    if file is None:
        pairs = pairs_for(run, translator, None, None, prefix)
        return Texts(pairs.name, pairs.sources, pairs.source_ids)
    sources: list[tuple[str, ...]] = []
    for line, content in enumerate(lines_of(file), 1):
        parts = text_of(content, f"{file}:{line}").split("\t")
        of_source = parts[: translator.columns]
        if not translator.columns <= len(parts) <= translator.columns + 1 or not all(map(str.strip, of_source)):
            raise InvalidDataError(
                f"{file}:{line}: has not {translator.columns} filled columns of a source, separated by tabs (and none "
                "or one of a target)"
            )
        sources.append(tuple(of_source))
    if not sources:
        raise InvalidDataError(f"{file}: has no texts")
    return Texts(f"{len(sources)} texts of {file}", sources, translator.encode_batch(sources, prefix))


def states_of(
    model: PreTrainedModel, sources: Sequence[Sequence[int]], max_tokens: int = MAX_TOKENS
) -> Iterator[tuple[int, np.ndarray]]:
    """
    The states of each text after the embeddings and after each layer, with its place: (layers + 1, tokens, d_model).

    The last are what the decoder reads; with `norm_first` only these are normalised. Nothing of the model is changed
    afterwards: `output_hidden_states` would leave hooks of transformers on it for good.

    Args:
        sources: Token ids, with <eos>.
        max_tokens: Padded tokens of a batch.
    """
    encoder: Any = model.get_encoder()
    lengths = [len(ids) for ids in sources]
    if not all(lengths):
        raise ValueError(f"text {lengths.index(0)} has no tokens: there is no vector")
    for batch in batches_by_length(lengths, max_tokens):
        ids = [sources[place] for place in batch]
        with reading_attention(model), recorded(encoder) as inputs:
            read = padded(ids, model.config.pad_token_id, model.device)
            last = encoder(read, attention_mask=mask_of(ids, model.device)).last_hidden_state
        states = torch.stack([*inputs, last]).cpu()  # (layers + 1, B, S, D)
        states = states if states.dtype == torch.float64 else states.float()
        for row, place in enumerate(batch):
            yield place, states[:, row, : lengths[place]].numpy()


def encoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    encoder: Any = model.get_encoder()
    layers: nn.ModuleList = encoder.layers
    return layers


@contextmanager
def recorded(encoder: Any) -> Iterator[list[Tensor]]:
    """What each layer of the encoder reads in the next forward pass."""
    inputs: list[Tensor] = []

    def keep(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        inputs.append(given[0].detach())

    hooks = [layer.register_forward_pre_hook(keep) for layer in encoder.layers]
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()


def arrays_of(vectors: Vectors) -> dict[str, np.ndarray]:
    """
    For a .npz: `sentence_vectors` (texts, d_model); `token_vectors` and `token_ids`, those of all texts one after the
    other, where text n has those from `first_tokens[n]` to `first_tokens[n + 1]`; `texts`; `layer` from 0.
    """
    return {
        "sentence_vectors": vectors.of_texts,
        "token_vectors": np.concatenate(vectors.of_tokens),
        "token_ids": np.concatenate([np.array(ids) for ids in vectors.texts.ids]),
        "first_tokens": np.cumsum([0, *map(len, vectors.of_tokens)]),
        "texts": np.array([line_of(source) for source in vectors.texts.sources]),
        "layer": np.array(vectors.layer),
        "pool": np.array(vectors.pool),
    }
