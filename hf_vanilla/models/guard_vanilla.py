"""
Speed: whether our own search (search_vanilla.py) may run in place of transformers' in a call of `generate()`, and how.

It may where it is known to find the same: only targets are asked for, by settings that it follows, of a model whose
parts are exactly those of modeling_vanilla.py. Whatever is not known here counts as no.
"""

import math
from collections.abc import Iterator
from copy import copy
from functools import cache, partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.generation import (
    EosTokenCriteria,
    ForcedEOSTokenLogitsProcessor,
    GenerateBeamEncoderDecoderOutput,
    LogitNormalization,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    StoppingCriteriaList,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.utils.output_capturing import capture_outputs

from .decoding_vanilla import IncrementalDecoder
from .kernels_vanilla import fast_on_cpu
from .search_vanilla import Search, beam_search, greedy_search

SOURCES = ("input_ids", "inputs_embeds", "encoder_outputs")
SERVED = {
    *(*SOURCES, "attention_mask", "max_length_beyond_source", "length_penalty_type", "transformers_version"),
    "alignment",  # read by others, after the search
    *("num_beams", "num_return_sequences", "length_penalty", "early_stopping", "max_length", "max_new_tokens"),
    *("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id", "use_cache"),
    *("decoder_input_ids", "decoder_attention_mask", "begin_suppress_tokens", "suppress_tokens", "bad_words_ids"),
    *("forced_eos_token_id", "renormalize_logits", "min_length", "min_new_tokens"),
}
"""Arguments of `generate()` and keys of the generation config that our search follows, or that do not concern it."""

OUR_FOLDER = __name__.removesuffix("guard_vanilla")  # as modules are named
SERVED_CRITERIA = (MaxLengthCriteria, EosTokenCriteria)
SERVED_ATTENTION = ("eager", "sdpa", "attention_by_length")  # the last is ours, for training on CPUs


class MoreIsAskedForError(Exception):
    """`generate()` has prepared more than our search does."""


def may_use_our_search(model: Any, inputs: Tensor | None, settings: dict[str, Any], kwargs: dict[str, Any]) -> bool:
    """
    Args:
        settings: What holds for the call: its arguments and both generation configs, together.
        kwargs: The arguments of the call alone.
    """
    return (
        all(is_served(name, value) for name, value in settings.items())
        and settings.get("eos_token_id") is not None
        and settings.get("use_cache") is not False
        and (inputs is None or kwargs.keys().isdisjoint(SOURCES))
        and has_enough_continuations(model, settings)
        and suits_device(model, settings)
        and is_exactly_ours(model)
        and has_tokens(kwargs.get("attention_mask"))
    )


def is_served(name: str, value: Any) -> bool:
    """Whether our search does what an argument, or a key of the generation config, asks for."""
    asks_for_nothing = value is None or value is False or name.startswith("_")
    return asks_for_nothing or name in SERVED


def has_enough_continuations(model: Any, settings: dict[str, Any]) -> bool:
    """Of the start token alone: beam search wants this many candidates at each step, also at the first."""
    eos = settings["eos_token_id"] if isinstance(settings["eos_token_id"], list) else [settings["eos_token_id"]]
    words = [word[0] for word in settings.get("bad_words_ids") or () if len(word) == 1]
    suppressed = {*(settings.get("begin_suppress_tokens") or ()), *(settings.get("suppress_tokens") or ()), *words}
    if settings.get("min_length") or settings.get("min_new_tokens"):
        suppressed.update(eos)
    return model.config.vocab_size - len(suppressed) >= (1 + len(eos)) * (settings.get("num_beams") or 1)


def suits_device(model: Any, settings: dict[str, Any]) -> bool:
    """On accelerators transformers' greedy search is better: it can start a step before the last one has ended."""
    is_sharded = model.tp_size or is_deepspeed_zero3_enabled()
    device = model.device.type
    is_autocast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return (device == "cpu" or (settings.get("num_beams") or 1) > 1) and not is_sharded and not is_autocast


def is_exactly_ours(model: Any) -> bool:
    """Whether what our search computes by itself, instead of calling it, is what modeling_vanilla.py says."""
    try:
        parts = list(parts_not_called(model))
    except AttributeError:
        return False  # another module stands in the place of one of ours
    called = (model.get_input_embeddings(), model.get_output_embeddings(), *model.model.decoder.modules())
    return (
        model.config._attn_implementation in SERVED_ATTENTION
        and all(is_dropout(kind) or is_ours(kind) for kind in set(map(type, parts)))
        and not any(has_replaced_methods(part) for part in parts)
        and not any(module.training or is_hooked(module) for module in (model, model.model, *called))
    )


def parts_not_called(model: Any) -> Iterator[nn.Module]:
    decoder = model.model.decoder
    yield from (model, model.model, decoder, decoder.embed_positions, decoder.dropout)
    for layer in decoder.layers:
        yield from (layer, layer.self_attn, layer.cross_attn, layer.feed_forward, layer.feed_forward.dropout)
        for sublayer in (layer.self_attn_sublayer, layer.cross_attn_sublayer, layer.feed_forward_sublayer):
            yield from (sublayer, sublayer.dropout)


def has_replaced_methods(part: nn.Module) -> bool:
    kind: Any = type(part)
    own, methods = vars(part), methods_of(kind)
    if methods.isdisjoint(own):
        return False
    return any(own[name] != MethodType(getattr(kind, name), part) for name in methods & own.keys())


def is_hooked(module: nn.Module) -> bool:
    """The hooks that transformers leaves behind after recording outputs do nothing until it records again."""
    if not module._forward_pre_hooks and not module._forward_hooks:
        return False
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    return any(getattr(hook, "__module__", None) != capture_outputs.__module__ for hook in hooks)


def is_dropout(kind: type) -> bool:
    return kind is nn.Dropout or hasattr(kind, "does_nothing_in_evaluation")


def is_ours(kind: type) -> bool:
    """Whether a class stands in this folder, and all its functions, also those it inherits here, were written there."""
    return stands_here(kind) and all(
        member.__module__ == base.__module__
        for base in filter(stands_here, kind.__mro__)
        for member in vars(base).values()
        if isinstance(member, FunctionType)
    )


def stands_here(kind: type) -> bool:
    return kind.__module__.startswith(OUR_FOLDER)


@cache
def methods_of(kind: type) -> frozenset[str]:
    members = (vars(base).items() for base in kind.__mro__)
    return frozenset(name for of_base in members for name, member in of_base if isinstance(member, FunctionType))


def has_tokens(mask: Tensor | None) -> bool:
    """Whether every row has a token. Over a row without any, PyTorch's attention is 0, and ours is not."""
    return mask is None or bool(mask.any(-1).all())


def ends_in_tokens(prefix: Tensor, mask: Tensor | None) -> bool:
    """Whether every prefix ends in a token: our search would let padding at the end attend to itself."""
    return mask is None or (mask.shape == prefix.shape and has_tokens(mask[:, -1:]))


def source_of(inputs: Tensor | None, kwargs: dict[str, Any]) -> Tensor | None:
    """Whatever `generate()` is given for the sources: (B, S) or (B, S, D)."""
    given = (inputs, *(kwargs.get(name) for name in SOURCES))
    source = next((source for source in given if source is not None), None)
    return source if source is None or isinstance(source, Tensor) else source[0]


def our_search_arguments(
    model: Any, inputs: Tensor | None, kwargs: dict[str, Any], limits: Tensor | None, is_scored: bool
) -> dict[str, Any]:
    """What has transformers' `generate()` run our search, on sources that are encoded with the fast kernels."""
    # Our search needs no cache, and to make one, transformers copies the configuration three times.
    given: dict[str, Any] = {"past_key_values": EncoderDecoderCache(DynamicCache(), DynamicCache())}
    given["custom_generate"] = partial(our_search, limits=limits, is_scored=is_scored)
    source = source_of(inputs, kwargs)
    if kwargs.get("encoder_outputs") is not None:
        # `generate()` repeats what is in it for each hypothesis, and may have to be called once more.
        given["encoder_outputs"] = copy(kwargs["encoder_outputs"])
    elif source is not None:
        name = "inputs_embeds" if source.is_floating_point() else "input_ids"
        with torch.no_grad(), fast_on_cpu(typical_ops=source.shape[:2].numel() * model.config.d_model**2):
            encoder = model.get_encoder()
            given["encoder_outputs"] = encoder(**{name: source}, attention_mask=kwargs.get("attention_mask"))
    return given


def our_search(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    limits: Tensor | None = None,
    is_scored: bool = False,
    **model_kwargs: Any,
) -> Tensor | GenerateBeamEncoderDecoderOutput:
    """
    The best targets, (B * R, T), where R is num_return_sequences. `generate()` calls it in place of its own search.

    Args:
        limits: (B,), how long each target may be, besides the limit of all.
        is_scored: Whether to return the targets together with their scores, (B * R,).
    """
    config = generation_config
    outputs = model_kwargs["encoder_outputs"].last_hidden_state
    masks = (model_kwargs.get(name) for name in ("attention_mask", "decoder_attention_mask"))
    # `generate()` has repeated everything for each hypothesis.
    sources, prefix = outputs[:: config.num_beams], input_ids[:: config.num_beams]
    mask, prefix_mask = (None if mask is None else mask[:: config.num_beams] for mask in masks)
    if any(type(c) not in SERVED_CRITERIA for c in stopping_criteria):
        raise MoreIsAskedForError
    if len(prefix) != len(sources) or not ends_in_tokens(prefix, prefix_mask):
        raise MoreIsAskedForError
    longest = torch.full_like(prefix[:, 0], config.max_length)
    longest = longest if limits is None else longest.minimum(limits)
    eos = prefix.new_tensor(config.eos_token_id).view(-1)
    pad = int(eos[0]) if config.pad_token_id is None else config.pad_token_id
    # Transformers' beam search takes a padding token of number 0 for none.
    fill = pad if config.num_beams == 1 or pad else int(eos[0])
    names = ("num_beams", "num_return_sequences", "length_penalty", "early_stopping")
    options = {name: getattr(config, name) for name in names}
    options |= {"max_new_tokens": config.max_length - prefix.shape[1], "is_scored": is_scored}
    options |= asked_of_tokens(logits_processor, prefix, model.config.vocab_size, options["max_new_tokens"])
    search = Search(prefix, longest - prefix.shape[1], eos, fill, **options)
    decoder = IncrementalDecoder(model, sources, mask, config.num_beams)
    decoder.read(prefix, prefix_mask)
    targets, scores = greedy_search(decoder, search) if config.num_beams == 1 else beam_search(decoder, search)
    targets = targets.clone()  # what is made in inference mode could not be changed
    if not is_scored:
        return targets
    return GenerateBeamEncoderDecoderOutput(sequences=targets, sequences_scores=scores.clone())


def asked_of_tokens(
    processors: LogitsProcessorList, prefix: Tensor, vocab_size: int, max_new_tokens: int
) -> dict[str, Any]:
    """What the logits processors ask for, as fields of `Search`: there must be none that it cannot do."""
    begun = prefix.shape[1]
    must_not_come: list[tuple[Tensor, float]] = []
    forced: list[int] = []
    for each in processors:
        kind = type(each)
        if kind is SuppressTokensAtBeginLogitsProcessor and each.begin_index == begun:
            must_not_come.append((each.begin_suppress_tokens, 1))
        elif kind is SuppressTokensLogitsProcessor:
            must_not_come.append((each.suppress_tokens, math.inf))
        elif kind is NoBadWordsLogitsProcessor and all(len(w) == 1 and w[0] < vocab_size for w in each.sequence_bias):
            must_not_come.append((prefix.new_tensor([token for (token,) in each.sequence_bias]), math.inf))
        elif kind is MinLengthLogitsProcessor:
            must_not_come.append((each.eos_token_id, each.min_length - begun))
        elif kind is MinNewTokensLengthLogitsProcessor:
            must_not_come.append((each.eos_token_id, each.min_new_tokens + each.prompt_length_to_skip - begun))
        elif kind is ForcedEOSTokenLogitsProcessor:
            forced = each.eos_token_id.tolist()
        elif kind is not LogitNormalization:
            raise MoreIsAskedForError
    if forced and not may_be_forced(forced, vocab_size, max_new_tokens):
        raise MoreIsAskedForError
    return {
        "must_not_come": tuple((known_tokens(tokens, prefix, vocab_size), last) for tokens, last in must_not_come),
        "forced_last": forced[0] if forced else None,
        "renormalizes": any(type(each) is LogitNormalization for each in processors),
    }


def may_be_forced(tokens: list[int], vocab_size: int, max_new_tokens: int) -> bool:
    """Not if there are several, nor as the first token, as there is only one hypothesis then."""
    return len(tokens) == 1 and tokens[0] < vocab_size and max_new_tokens > 1


def known_tokens(tokens: Tensor, prefix: Tensor, vocab_size: int) -> Tensor:
    tokens = tokens.to(prefix.device, torch.long)
    return tokens[(tokens >= 0) & (tokens < vocab_size)]


__all__ = ["MoreIsAskedForError", "may_use_our_search", "our_search_arguments", "source_of"]
