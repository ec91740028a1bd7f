"""What is searched for: the options of a call, else of its generation config, else of the model's."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import GenerationConfig

from ..models.generation_vanilla import GNMTLengthPenalty
from .sampling import NO_EFFECT, WARPERS, SeededSampling, seed_of

WITHOUT_EFFECT = {
    *("bos_token_id", "use_cache", "alignment", "transformers_version", "temperature", "top_k", "top_p", "typical_p"),
    *("min_p", "epsilon_cutoff", "eta_cutoff", "top_h"),
}
"""Keys that change nothing in a search that draws no samples."""

NEUTRAL = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "num_beam_groups"), 1),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "diversity_penalty"), 0),
    **dict.fromkeys(("min_length", "min_new_tokens"), 0),
}
"""Values that ask for nothing. Elsewhere a 0 may be a token."""


def asks_for_nothing(name: str, value: Any) -> bool:
    """Whether a search that draws no samples may pass over a setting which it does not know."""
    is_off = value is None or value is False or NEUTRAL.get(name) == value
    return is_off or name.startswith("_") or name in WITHOUT_EFFECT


class SearchSettings:
    """What holds for the searches of one call: its options, else those of its generation config, else the model's."""

    def __init__(
        self,
        config: GenerationConfig,
        positions: int | None,
        generation: dict[str, Any],
        seed: int | None = None,
        with_scores: bool = False,
    ):
        self.generation = generation
        self.configs = [each for each in (generation.get("generation_config"), config) if each]
        self.positions = positions
        is_sampling = bool(self.of("do_sample"))
        self.number = int(self.of("num_return_sequences") or 1)
        given = generation.get("num_beams")
        usual = 1 if is_sampling else max(self.of("num_beams") or 1, self.number)
        self.num_beams = int(given or usual)
        self.is_sampling = is_sampling and self.num_beams == 1
        self.has_scores = with_scores and not self.is_sampling  # of the search itself
        if self.number > self.num_beams and not is_sampling:
            raise ValueError(
                f"num_return_sequences ({self.number}) must not be greater than num_beams ({self.num_beams}): the "
                "search has no more hypotheses"
            )
        if seed is not None and not self.is_sampling:
            raise ValueError("a seed is for sampling: give do_sample=True, and num_beams=1 or none")
        if seed is None and self.is_sampling:  # a search draws nothing: validations must not change a training
            seed = int(torch.randint(2**62, ()))
        self.seed = seed or 0

    def of(self, name: str) -> Any:
        """The value of a key, None if it is set nowhere. None in the call switches it off, as in `generate()`."""
        if name in self.generation:
            return self.generation[name]
        values = (getattr(config, name, None) for config in self.configs)
        return next((value for value in values if value is not None), None)

    def of_sampling(self, name: str) -> Any:
        """As `of`. What the call switches off has no effect, also where transformers would have a default for it."""
        is_off = name in self.generation and self.generation[name] is None
        return NO_EFFECT[name] if is_off else self.of(name)

    @property
    def length_penalty(self) -> float:
        exponent = self.of("length_penalty")
        exponent = 1.0 if exponent is None else exponent
        return GNMTLengthPenalty(exponent) if self.of("length_penalty_type") == "gnmt" else exponent

    def limits(self, source_lengths: Sequence[int], forced: int) -> list[int]:
        """
        How many tokens each target may get after those that it is given, as `options_of` and `generate()` have it.

        Args:
            forced: As for `options_of`.
        """
        longest, beyond = self.of("max_length"), self.of("max_length_beyond_source")
        new = self.of("max_new_tokens")
        most = [] if longest is None else [longest - 1]
        if new is not None:
            most = [new]
        if self.positions:
            most.append(self.positions - forced)
        if not most:
            raise ValueError("give max_length or max_new_tokens: there is no limit of length")
        each = [[] if beyond is None else [length + beyond] for length in source_lengths]
        return [max(1, min(*most, *own, most[0])) for own in each]

    def options_of(self, numbers: Sequence[int], forced: int, suppressed: Sequence[int] = ()) -> dict[str, Any]:
        """
        Arguments of `generate()` for lines with these numbers.

        Args:
            forced: The tokens that targets are given to begin with. They do not count for the limits of length.
            suppressed: The tokens that must not follow these.
        """
        options = self.generation | {"num_beams": self.num_beams}
        if suppressed:
            options["begin_suppress_tokens"] = sorted({*suppressed, *(self.of("begin_suppress_tokens") or ())})
        names = ["max_length_beyond_source"]
        if self.generation.get("max_new_tokens") is None:  # which counts only what comes after, and goes first
            names.append("max_length")
        for name in names:
            if self.of(name) is not None and forced:
                options[name] = self.of(name) + forced
        if self.positions and "max_length" in names and self.of("max_length") is not None:
            longest = options.get("max_length") or self.of("max_length")
            options["max_length"] = min(longest, self.positions + 1)  # the last token is not read
        if self.is_sampling:
            seeds = [seed_of(self.seed, number, sample) for number in numbers for sample in range(self.number)]
            options |= dict.fromkeys(WARPERS) | {"do_sample": False, "num_return_sequences": 1}
            processors = [*self.generation.get("logits_processor", []), SeededSampling(self.of_sampling, seeds)]
            options["logits_processor"] = processors
        elif self.number > 1:
            options["num_return_sequences"] = self.number
        if self.has_scores:
            options["return_sequence_scores"] = True
        return options
