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
from hf_vanilla.inference.engine import Found
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
        start, *tokens = map(WORDS.index, [source[0], *target, WORDS[EOS]])
        return [language((start, *tokens[:place]))[token] for place, token in enumerate(tokens)]


GNMT = {"length_penalty": 0.6, "length_penalty_type": "gnmt"}


def found_by_us(sources: list[list[int]], width: int, **options: Any) -> list[list[Found]]:
    config = GenerationConfig(eos_token_id=EOS, max_new_tokens=LIMIT, num_beams=width, num_return_sequences=width)
    settings = SearchSettings(config, None, options, with_scores=True)
    engine = CTranslate2Engine(LikeCTranslate2(), WORDS, config, positions=100)
    return engine.search(sources, [[]] * len(sources), range(len(sources)), settings)


def found_by_transformers(sources: list[list[int]], width: int, **options: Any) -> list[list[Found]]:
    if options.pop("length_penalty_type", None):
        options["length_penalty"] = GNMTLengthPenalty(options["length_penalty"])
    usual = {"eos_token_id": EOS, "pad_token_id": EOS, "max_new_tokens": LIMIT, "num_beams": width}
    usual |= {"num_return_sequences": width, "use_cache": False, "return_dict_in_generate": True, "output_scores": True}
    found = Language().generate(torch.tensor(sources)[:, :1], **usual | options)
    rows = (row[: row.index(EOS) + 1] if EOS in row else row for row in found.sequences[:, 1:].tolist())
    ranked = iter(map(Found, rows, found.sequences_scores.tolist()))
    return [[next(ranked) for _ in range(width)] for _ in sources]


def assert_the_same(found: list[list[Found]], expected: list[list[Found]]) -> None:
    both = list(zip(found, expected, strict=True))
    different = [
        place for place, rows in enumerate(both) if len({str([one.token_ids for one in row]) for row in rows}) > 1
    ]
    assert different == []
    scores, wanted = ([one.score for row in rows for one in row] for rows in (found, expected))
    assert scores == pytest.approx(wanted, abs=1e-5)
    assert len({len(one.token_ids) for row in expected for one in row}) > 5


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
        GNMT,
        GNMT | {"early_stopping": True},
        GNMT | {"early_stopping": "never"},
    ],
    ids=str,
)
def test_a_search_ends_where_that_of_transformers_does(options: dict[str, Any], width: int) -> None:
    sources = [[TOKENS + place] for place in range(SENTENCES)]
    assert_the_same(found_by_us(sources, width, **options), found_by_transformers(sources, width, **options))


@pytest.mark.parametrize("options", [{}, {"early_stopping": True}, GNMT | {"early_stopping": True}], ids=str)
def test_it_ends_at_the_limit_of_its_own_sentence(options: dict[str, Any]) -> None:
    sources = [[TOKENS + place] * (1 + place % 9) for place in range(SENTENCES)]
    found = found_by_us(sources, 3, **options, max_length_beyond_source=2)
    of_each_length = [
        found_by_transformers(sources[start::9], 3, **options, max_new_tokens=start + 3) for start in range(9)
    ]
    expected = [of_each_length[place % 9][place // 9] for place in range(SENTENCES)]
    assert_the_same(found, expected)
