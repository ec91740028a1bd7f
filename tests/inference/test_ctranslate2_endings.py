"""
Where transformers' search ends is found exactly, from what a search like CTranslate2's gives.

Models with random weights hardly show it. So here is a language of seven tokens, all of whose prefixes have other
probabilities, many of them confident ones, and two searches in it: transformers' own, and one by CTranslate2's rules.
That these are its rules is what `tests/interop/test_to_ctranslate2.py` shows.
"""

import math
import random
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from hf_vanilla.inference.ctranslate2_engine import CTranslate2Engine
from hf_vanilla.inference.search_settings import SearchSettings
from hf_vanilla.models.generation_vanilla import GNMTLengthPenalty

TOKENS, EOS, LIMIT, SENTENCES = 7, 0, 14, 250
WORDS = [f"<{token}>" for token in range(TOKENS + SENTENCES)]  # behind the tokens, those that stand for sentences


@cache
def language(prefix: tuple[int, ...]) -> list[float]:
    """The log-probabilities of what follows a sentence's token and these."""
    chance = random.Random(repr(prefix))  # noqa: S311
    confidence = chance.uniform(0.3, 5)
    logits = [confidence * chance.gauss(0, 1) for _ in range(TOKENS)]
    total = math.log(math.fsum(map(math.exp, logits)))
    return [logit - total for logit in logits]


class Language(PreTrainedModel, GenerationMixin):
    """The language as a model of transformers."""

    config_class = PreTrainedConfig

    def __init__(self) -> None:
        super().__init__(PreTrainedConfig(vocab_size=TOKENS))
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        rows = [language(tuple(row)) for row in input_ids.tolist()]
        return CausalLMOutput(logits=torch.tensor(rows, dtype=torch.float64)[:, None])


class LikeCTranslate2:
    """The language as a `ctranslate2.Translator`."""

    def translate_batch(self, sources: list[list[str]], **options: Any) -> list[SimpleNamespace]:
        return [self._translate(WORDS.index(source[0]), **options) for source in sources]

    def _translate(
        self,
        sentence: int,
        beam_size: int,
        patience: float,
        num_hypotheses: int,
        length_penalty: float,
        max_decoding_length: int,
        **_: Any,
    ) -> SimpleNamespace:
        running: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        finished: list[tuple[float, tuple[int, ...]]] = []
        for step in range(1, max_decoding_length + 1):
            following = (
                (total + more, (*tokens, token))
                for total, tokens in running
                for token, more in enumerate(language((sentence, *tokens)))
            )
            candidates = sorted(following, reverse=True)
            is_last = step == max_decoding_length
            finished += [one for one in candidates[:beam_size] if is_last or one[1][-1] == EOS]
            running = [one for one in candidates if one[1][-1] != EOS][:beam_size]
            if len(finished) >= round(beam_size * patience):
                break
        scored = sorted(((total / len(tokens) ** length_penalty, tokens) for total, tokens in finished), reverse=True)
        scores, targets = zip(*scored[:num_hypotheses], strict=True)
        return SimpleNamespace(hypotheses=[[WORDS[token] for token in each] for each in targets], scores=scores)

    def score_batch(self, sources: list[list[str]], targets: list[list[str]], **_: Any) -> list[SimpleNamespace]:
        return [
            SimpleNamespace(log_probs=self._log_probs(source, target))
            for source, target in zip(sources, targets, strict=True)
        ]

    def _log_probs(self, source: list[str], target: list[str]) -> list[float]:
        start, *tokens = map(WORDS.index, [*source, *target, WORDS[EOS]])
        return [language((start, *tokens[:place]))[token] for place, token in enumerate(tokens)]


GNMT = {"length_penalty": 0.6, "length_penalty_type": "gnmt"}


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"early_stopping": True},
        {"length_penalty": 0.0},
        {"length_penalty": -0.5},
        {"length_penalty": 2.0},
        {"early_stopping": "never"},
        {"early_stopping": "never", "length_penalty": 0.0},
        {"early_stopping": "never", "length_penalty": 2.0},
        GNMT | {"early_stopping": "never"},
        GNMT,
    ],
    ids=str,
)
def test_a_search_ends_where_that_of_transformers_does(options: dict[str, Any], width: int) -> None:
    config = GenerationConfig(eos_token_id=EOS, pad_token_id=EOS, max_new_tokens=LIMIT, num_beams=width)
    settings = SearchSettings(config, None, options | {"num_return_sequences": width}, with_scores=True)
    engine = CTranslate2Engine(LikeCTranslate2(), WORDS, config, positions=100)
    sentences = [[TOKENS + place] for place in range(SENTENCES)]
    found = engine.search(sentences, [[]] * SENTENCES, range(SENTENCES), settings)
    kwargs: dict[str, Any] = {name: value for name, value in options.items() if name != "length_penalty_type"}
    if "length_penalty_type" in options:
        kwargs["length_penalty"] = GNMTLengthPenalty(0.6)
    asked = {"num_return_sequences": width, "return_dict_in_generate": True, "output_scores": True, "use_cache": False}
    theirs = Language().generate(torch.tensor(sentences), config, **kwargs, **asked)
    rows = theirs.sequences[:, 1:].tolist()
    targets = [tuple(row[: row.index(EOS) + 1] if EOS in row else row) for row in rows]
    expected = [targets[start : start + width] for start in range(0, len(targets), width)]
    different = [
        place
        for place, (want, have) in enumerate(zip(expected, found, strict=True))
        if want != [tuple(one.token_ids) for one in have]
    ]
    assert different == []
    scores = [one.score for row in found for one in row]
    assert scores == pytest.approx(theirs.sequences_scores.tolist(), abs=1e-5)
    assert len(set(map(len, targets))) > 5
