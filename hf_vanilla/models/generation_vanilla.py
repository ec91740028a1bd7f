"""The paper's search (section 6.1) inside transformers' `generate()`, switched on by keys of the generation config."""

import sys
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.generation import (
    EosTokenCriteria,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)

from .decoding_vanilla import IncrementalDecoder
from .products_vanilla import fast_on_cpu
from .search_vanilla import Search, beam_search, greedy_search

KEYS = ("length_penalty_type", "max_length_beyond_source")
LENGTH_PENALTY_TYPES = (None, "gnmt")


class GNMTLengthPenalty(float):
    """
    The exponent of the length penalty of Wu et al. (2016), equation 14: ((5 + length) / 6) ** alpha.

    Beam search divides the score of a hypothesis by `length ** length_penalty`: with this as the exponent, it is by
    theirs.
    """

    def __rpow__(self, length: float, modulo: None = None) -> Any:
        return ((5 + length) / 6) ** float(self)


class MaxLengthBeyondSource(StoppingCriteria):
    """Stops every hypothesis at the limit of its own sentence, however many hypotheses there are of each."""

    def __init__(self, limits: Tensor):
        self.limits = limits

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        limits = self.limits.repeat_interleave(input_ids.shape[0] // self.limits.shape[0])
        return input_ids.shape[1] >= limits


DYNAMIC = (None, "dynamic")  # cache_implementation
OTHER_MASKS = ("flash", "flex", "paged")  # of these implementations are no tensors over sentences
PLAIN_CRITERIA = (MaxLengthCriteria, EosTokenCriteria, MaxLengthBeyondSource)
PLAIN_ARGUMENTS = {"attention_mask", "encoder_outputs", "past_key_values", "use_cache", "output_attentions"}
PLAIN_ARGUMENTS |= {"output_hidden_states", "logits_to_keep"}


class VanillaGenerationMixin(GenerationMixin):
    """
    `generate()` with two more keys of the generation config, both None by default, for what section 6.1 does:

    - `length_penalty_type`: "gnmt" divides a hypothesis's log-probability by ((5 + length) / 6) ** length_penalty;
      None by length ** length_penalty, as everywhere in transformers.
    - `max_length_beyond_source`: how many tokens a target may be longer than its own source. `max_length` and
      `max_new_tokens`, where set, hold as well.
    """

    def _prepare_generation_config(
        self, generation_config: GenerationConfig | None, **kwargs: Any
    ) -> tuple[GenerationConfig, dict[str, Any]]:
        given = {key: kwargs.pop(key) for key in KEYS if key in kwargs}
        config, model_kwargs = super()._prepare_generation_config(generation_config, **kwargs)
        for key in KEYS:  # a config written elsewhere does not have them
            setattr(config, key, given.get(key, getattr(config, key, None)))
        if config.length_penalty_type not in LENGTH_PENALTY_TYPES:
            raise ValueError(f"length_penalty_type ({config.length_penalty_type!r}) must be 'gnmt' or None")
        if config.max_length_beyond_source is not None and config.max_length_beyond_source < 0:
            raise ValueError(f"max_length_beyond_source ({config.max_length_beyond_source}) must not be negative")
        if config.length_penalty_type == "gnmt":
            config.length_penalty = GNMTLengthPenalty(config.length_penalty)
        return config, model_kwargs

    def _maybe_prepare_encoder_kwargs_for_generation(self, inputs_tensor: Tensor, *args: Any) -> dict[str, Any]:
        with fast_on_cpu(usual=inputs_tensor.shape[:2].numel() * self.config.d_model**2):
            return super()._maybe_prepare_encoder_kwargs_for_generation(inputs_tensor, *args)

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """The usual cache, without the copies of the whole configuration that transformers makes on the way to it."""
        is_usual = generation_config.cache_implementation in DYNAMIC and generation_config.use_cache is not False
        if is_usual and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = EncoderDecoderCache(DynamicCache(), DynamicCache())
        else:
            super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)

    def _prepare_decoder_input_ids_for_generation(
        self, batch_size: int, model_input_name: str, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        """Where target prefixes are padded, say where their tokens stand: static caches hide the mask from forward."""
        input_ids, model_kwargs = super()._prepare_decoder_input_ids_for_generation(
            batch_size, model_input_name, model_kwargs, *args, **kwargs
        )
        mask = model_kwargs.get("decoder_attention_mask")
        if mask is not None and model_kwargs.get("decoder_position_ids") is None:
            model_kwargs["decoder_position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)
        return input_ids, model_kwargs

    def _prepare_generated_length(
        self,
        generation_config: GenerationConfig,
        has_default_max_length: bool,
        input_ids_length: int,
        inputs_tensor: Tensor,
        **kwargs: Any,
    ) -> GenerationConfig:
        """Where nobody set a length for the whole batch, its longest source does, as far as positions reach."""
        beyond = generation_config.max_length_beyond_source
        if beyond is not None and has_default_max_length and generation_config.max_new_tokens is None:
            positions = getattr(self.config, "max_position_embeddings", sys.maxsize)
            generation_config.max_new_tokens = min(inputs_tensor.shape[1] + beyond, positions - input_ids_length)
        return super()._prepare_generated_length(
            generation_config=generation_config,
            has_default_max_length=has_default_max_length,
            input_ids_length=input_ids_length,
            inputs_tensor=inputs_tensor,
            **kwargs,
        )

    def _get_logits_processor(
        self,
        generation_config: GenerationConfig,
        encoder_input_ids: Tensor,
        model_kwargs: dict[str, Any],
        **kwargs: Any,
    ) -> LogitsProcessorList:
        """The last step before `_get_stopping_criteria` that sees the sources: sets the limits for it."""
        beyond = generation_config.max_length_beyond_source
        if beyond is not None:
            limits = _length_limits(encoder_input_ids, model_kwargs, beyond)
            generation_config._length_limits = limits
            generation_config.max_length = min(generation_config.max_length, int(limits.max()))
        return super()._get_logits_processor(
            generation_config=generation_config,
            encoder_input_ids=encoder_input_ids,
            model_kwargs=model_kwargs,
            **kwargs,
        )

    def _get_stopping_criteria(self, generation_config: GenerationConfig, **kwargs: Any) -> StoppingCriteriaList:
        criteria = super()._get_stopping_criteria(generation_config=generation_config, **kwargs)
        if generation_config.max_length_beyond_source is not None:
            criteria.append(MaxLengthBeyondSource(generation_config._length_limits))
        return criteria

    def _beam_search(
        self,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        """Our own search where it finds the same, transformers' where more is asked for than targets."""
        arguments = input_ids, logits_processor, stopping_criteria, generation_config
        if not synced_gpus and self._is_plain(*arguments, model_kwargs):
            return beam_search(*self._search(input_ids, generation_config, model_kwargs))[0].clone()
        return super()._beam_search(*arguments, synced_gpus=synced_gpus, **model_kwargs)

    def _sample(
        self,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """The same; on accelerators transformers' greedy search has the advantage of not waiting for any step."""
        arguments = input_ids, logits_processor, stopping_criteria, generation_config
        is_on_cpu = input_ids.device.type == "cpu" and streamer is None
        if is_on_cpu and not synced_gpus and self._is_plain(*arguments, model_kwargs):
            return greedy_search(*self._search(input_ids, generation_config, model_kwargs)).clone()
        return super()._sample(*arguments, synced_gpus=synced_gpus, streamer=streamer, **model_kwargs)

    def _is_plain(
        self,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        config: GenerationConfig,
        model_kwargs: dict[str, Any],
    ) -> bool:
        """Whether nothing is asked for but the best targets, from their first token on."""
        cache = model_kwargs.get("past_key_values")
        return (
            input_ids.shape[1] == 1
            and not config.do_sample
            and not config.return_dict_in_generate
            and not logits_processor
            and all(type(criterion) in PLAIN_CRITERIA for criterion in stopping_criteria)
            and config._eos_token_tensor is not None
            and self.config.vocab_size >= (1 + len(config._eos_token_tensor)) * config.num_beams
            and not any(name in self.config._attn_implementation for name in OTHER_MASKS)
            and set(model_kwargs) <= PLAIN_ARGUMENTS
            and config.cache_implementation in DYNAMIC
            and isinstance(cache, EncoderDecoderCache)
            and not getattr(cache, "_is_user_defined", False)  # or somebody wants to have it afterwards
            and type(cache.self_attention_cache) is DynamicCache
            and cache.get_seq_length() == 0
            and not self.tp_size
            and not any(map(_is_watched, (self, self.model, *self.get_decoder().modules())))
        )

    def _search(
        self, input_ids: Tensor, config: GenerationConfig, model_kwargs: dict[str, Any]
    ) -> tuple[IncrementalDecoder, Search]:
        sources = model_kwargs["encoder_outputs"].last_hidden_state[:: config.num_beams]
        mask = model_kwargs.get("attention_mask")
        start = input_ids[:: config.num_beams, 0]
        limits = torch.full_like(start, config.max_length)
        if config.max_length_beyond_source is not None:
            limits = limits.minimum(config._length_limits)
        eos, pad = config._eos_token_tensor, config._pad_token_tensor
        # As in transformers, where beam search takes a padding token of number 0 for none.
        fill = int(pad) if config.num_beams == 1 or (pad is not None and int(pad)) else int(eos[0])
        mask = None if mask is None else mask[:: config.num_beams]
        decoder = IncrementalDecoder(self, sources, mask, config.num_beams)
        names = ("num_beams", "num_return_sequences", "length_penalty", "early_stopping", "max_length")
        return decoder, Search(start, limits, eos, fill, **{name: getattr(config, name) for name in names})


def _is_watched(module: nn.Module) -> bool:
    """Whether a call does more than the search knows: dropout, hooks that move or gather weights, what was compiled."""
    hooks = module._forward_pre_hooks or module._forward_hooks
    return bool(module.training or hooks or "forward" in vars(module))


def _length_limits(sources: Tensor, model_kwargs: dict[str, Any], beyond: int) -> Tensor:
    """How long the target of each source may be, start token and padding of a given prefix included: (B,)."""
    limits = sources.new_full(sources.shape[:1], 1 + beyond, dtype=torch.long)
    source_mask, prefix_mask = model_kwargs.get("attention_mask"), model_kwargs.get("decoder_attention_mask")
    limits += sources.shape[1] if source_mask is None else _once(source_mask, sources).sum(-1)
    return limits if prefix_mask is None else limits + (_once(prefix_mask, sources) == 0).sum(-1)


def _once(repeated: Tensor, sources: Tensor) -> Tensor:
    """One row for each source, where `generate` has one for each hypothesis."""
    return repeated[:: repeated.shape[0] // sources.shape[0]]
