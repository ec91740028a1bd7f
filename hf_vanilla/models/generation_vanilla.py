"""The paper's search (section 6.1) inside transformers' `generate()`, switched on by keys of the generation config."""

from typing import Any

from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

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

    def _prepare_generated_length(
        self,
        generation_config: GenerationConfig,
        has_default_max_length: bool,
        inputs_tensor: Tensor,
        **kwargs: Any,
    ) -> GenerationConfig:
        """Where nobody set a length for the whole batch, its longest source does."""
        beyond = generation_config.max_length_beyond_source
        if beyond is not None and has_default_max_length and generation_config.max_new_tokens is None:
            generation_config.max_new_tokens = inputs_tensor.shape[1] + beyond
        return super()._prepare_generated_length(
            generation_config=generation_config,
            has_default_max_length=has_default_max_length,
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
        """The last step before `_get_stopping_criteria` that sees the sources: keeps the lengths for it."""
        beyond = generation_config.max_length_beyond_source
        if beyond is not None:
            generation_config._length_limits = 1 + _source_lengths(encoder_input_ids, model_kwargs) + beyond
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


def _source_lengths(sources: Tensor, model_kwargs: dict[str, Any]) -> Tensor:
    """The number of tokens of each source, padding left out: (B,)."""
    mask = model_kwargs.get("attention_mask")
    if mask is None:
        return sources.new_full(sources.shape[:1], sources.shape[1])
    return mask.sum(-1)[:: mask.shape[0] // sources.shape[0]]  # `generate` has repeated the mask for every hypothesis
