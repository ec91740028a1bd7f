"""The paper's search (6.1) inside transformers' `generate()`, switched on by two keys of the generation config."""

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin
from transformers.generation import (
    GenerateBeamEncoderDecoderOutput,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from .guard_vanilla import MoreIsAskedForError, may_use_our_search, our_search_arguments, source_of

KEYS = ("length_penalty_type", "max_length_beyond_source")
LENGTH_PENALTY_TYPES = (None, "gnmt")


class GNMTLengthPenalty(float):
    """
    The exponent of the length penalty of Wu et al. (2016), equation 14: ((5 + length) / 6) ** alpha.

    Beam search divides the score of a hypothesis by `length ** length_penalty`. With this as the exponent, what Python
    computes for that is the penalty above.
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

    And with one more argument, `return_sequence_scores=True`: the result is then a `GenerateBeamEncoderDecoderOutput`
    with `sequences` and `sequences_scores`, also for `num_beams=1`. The score of a target is the sum of the
    log-probabilities of its new tokens, <eos> included, divided by the length penalty for their number. New are those
    after the start token, or after `decoder_input_ids` if given. (transformers itself has `sequences_scores` only for
    beam search and with `output_scores=True`, which keeps the scores of the whole vocabulary at every step.)

    Beam search counts the probabilities after logits processors, as always in transformers. Greedy search and sampling
    count those of the model itself, whatever a sample was drawn from. With `return_dict_in_generate=True` the result
    has everything that this asks for besides.
    """

    def generate(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        *arguments: Any,
        return_sequence_scores: bool = False,
        **kwargs: Any,
    ) -> Any:
        """That of transformers, with the two keys and scores; by our own search where it is known to find the same."""
        settings = self._settings(generation_config, kwargs)
        is_plain = not (logits_processor or stopping_criteria or arguments)
        is_plain = is_plain and may_use_our_search(self, inputs, settings, kwargs)
        kwargs = {name: value for name, value in kwargs.items() if name not in KEYS}
        limits: Tensor | None = None
        changes: dict[str, Any] = {}
        if settings["length_penalty_type"] == "gnmt":
            changes["length_penalty"] = GNMTLengthPenalty(settings.get("length_penalty", 1.0))
        if settings["max_length_beyond_source"] is not None:
            limits = length_limits(inputs, kwargs, settings["max_length_beyond_source"])
            changes |= self._limit_of_batch(settings, limits)
        config, kwargs = with_changes(generation_config, kwargs, changes)
        if is_plain:
            try:
                ours = our_search_arguments(self, inputs, kwargs, limits, return_sequence_scores)
                return super().generate(inputs, config, **kwargs | ours)
            except MoreIsAskedForError:
                pass  # then transformers' own search
        is_cut = bool(stopping_criteria or settings.get("stop_strings"))
        if limits is not None:
            stopping_criteria = StoppingCriteriaList([*(stopping_criteria or []), MaxLengthBeyondSource(limits)])
        if return_sequence_scores:
            config, kwargs = with_changes(config, kwargs, what_scores_need(settings))
        found = super().generate(inputs, config, logits_processor, stopping_criteria, *arguments, **kwargs)
        return with_scores(found, settings | changes, limits, is_cut) if return_sequence_scores else found

    def prepare_inputs_for_generation(self, input_ids: Tensor, *arguments: Any, **kwargs: Any) -> dict[str, Any]:
        """Where target prefixes are padded, say where their tokens stand: static caches hide the mask from forward."""
        mask = kwargs.get("decoder_attention_mask")
        if mask is not None and mask.dim() == 2 and kwargs.get("decoder_position_ids") is None:
            kwargs["decoder_position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)
        return super().prepare_inputs_for_generation(input_ids, *arguments, **kwargs)

    def _settings(self, generation_config: GenerationConfig | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        """What holds for this call: its arguments, else its generation config, else the model's."""
        settings: dict[str, Any] = dict.fromkeys(KEYS)
        for config in (self.generation_config, generation_config):
            if config is not None:
                settings |= {name: value for name, value in vars(config).items() if value is not None}
        settings |= kwargs
        penalty_type, beyond = (settings[key] for key in KEYS)
        if penalty_type not in LENGTH_PENALTY_TYPES:
            raise ValueError(f"length_penalty_type ({penalty_type!r}) must be 'gnmt' or None")
        if beyond is not None and beyond < 0:
            raise ValueError(f"max_length_beyond_source ({beyond}) must not be negative")
        return settings

    def _limit_of_batch(self, settings: dict[str, Any], limits: Tensor) -> dict[str, int]:
        """The longest limit of a sentence, unless less is asked for, or learned positions end before it."""
        longest, prefix = int(limits.max()), settings.get("decoder_input_ids")
        if settings.get("max_new_tokens") is not None:
            left = longest - (1 if prefix is None else prefix.shape[1])
            return {"max_new_tokens": min(settings["max_new_tokens"], left)}
        is_limited = self.config.position_embedding_type == "learned"
        asked = settings.get("max_length") or (self.config.max_position_embeddings if is_limited else longest)
        return {"max_length": min(longest, asked)}


def length_limits(inputs: Tensor | None, kwargs: dict[str, Any], beyond: int) -> Tensor:
    """How long the target of each source may be, start token and padding of a given prefix included: (B,)."""
    source = source_of(inputs, kwargs)
    if source is None:
        raise ValueError(f"max_length_beyond_source ({beyond}) needs the sources: give generate() their input_ids")
    source_mask, prefix_mask = kwargs.get("attention_mask"), kwargs.get("decoder_attention_mask")
    limits = torch.full(source.shape[:1], 1 + beyond, device=source.device)
    limits += source.shape[1] if source_mask is None else source_mask.sum(-1)
    return limits if prefix_mask is None else limits + (prefix_mask == 0).sum(-1)


def what_scores_need(settings: dict[str, Any]) -> dict[str, bool]:
    """What transformers' own searches have to record."""
    has_beams = (settings.get("num_beams") or 1) > 1
    return {"return_dict_in_generate": True, "output_scores" if has_beams else "output_logits": True}


def with_scores(
    found: Any, settings: dict[str, Any], limits: Tensor | None, is_cut: bool
) -> GenerateBeamEncoderDecoderOutput:
    """What transformers' own searches found, with scores also where there were no beams."""
    outputs = dict(found)
    if "sequences_scores" not in outputs:
        outputs["sequences_scores"] = scores_without_beams(found, settings, limits, is_cut)
    if not settings.get("return_dict_in_generate"):
        outputs = {name: outputs[name] for name in ("sequences", "sequences_scores")}
    return GenerateBeamEncoderDecoderOutput(**outputs)


def scores_without_beams(found: Any, settings: dict[str, Any], limits: Tensor | None, is_cut: bool) -> Tensor:
    """
    Log-probabilities of the new tokens, divided by the length penalty for their number: (B,).

    Args:
        is_cut: Whether stopping criteria of the caller may have ended targets without <eos>. Where they did can be
            seen only from the padding after it.
    """
    sequences, first = found.sequences, found.sequences.shape[1] - len(found.logits)
    tokens = sequences[:, first:]  # (B, T)
    of_steps = zip(found.logits, tokens.split(1, dim=-1), strict=True)
    log_probs = torch.cat([logits.log_softmax(-1).gather(-1, token) for logits, token in of_steps], dim=-1)
    eos, pad = settings.get("eos_token_id"), settings.get("pad_token_id")
    ends = torch.isin(tokens, tokens.new_tensor([] if eos is None else eos))
    if limits is not None:
        lengths = torch.arange(first + 1, sequences.shape[1] + 1, device=tokens.device)
        ends |= lengths >= limits.repeat_interleave(len(tokens) // len(limits))[:, None]
    counts = ends.cumsum(-1) - ends.long() == 0
    if is_cut and pad is not None:
        counts &= (tokens != pad).flip(-1).cumsum(-1).flip(-1) > 0
    penalties = [max(1, length) ** settings.get("length_penalty", 1.0) for length in counts.sum(-1).tolist()]
    return log_probs.masked_fill(~counts, 0).sum(-1) / log_probs.new_tensor(penalties)


def with_changes(
    config: GenerationConfig | None, kwargs: dict[str, Any], changes: dict[str, Any]
) -> tuple[GenerationConfig | None, dict[str, Any]]:
    """Other settings for one call: in a copy of its generation config or, if it has none, among its arguments."""
    if config is None or not changes:
        return config, kwargs | changes
    config = copy.deepcopy(config)
    for name, value in changes.items():
        setattr(config, name, value)
    return config, {name: value for name, value in kwargs.items() if name not in changes}


__all__ = ["KEYS", "VanillaGenerationMixin"]
