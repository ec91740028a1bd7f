"""Tokens that must not come, and one that must come last: our own search finds what transformers' finds."""

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import pytest
import torch
from searches import BOS, EOS, PAD, SENTENCES, VOCAB, Recorder, Source, assert_the_same

from hf_vanilla import VanillaForConditionalGeneration as Model

MakeModel = Callable[..., Model]

OFTEN = [5, 7, 11, 12, 23, 30, 31, 38]
ASKED: list[dict[str, Any]] = [
    {"suppress_tokens": OFTEN},
    {"suppress_tokens": [*OFTEN, VOCAB + 5, -1]},
    {"suppress_tokens": [*OFTEN, EOS]},
    {"bad_words_ids": [[token] for token in OFTEN]},
    {"bad_words_ids": [[PAD]], "forced_eos_token_id": EOS, "renormalize_logits": True},  # as OPUS-MT has it
    {"bad_words_ids": [[EOS], [OFTEN[0]]]},  # transformers lets <eos> alone there
    {"forced_eos_token_id": EOS},
    {"forced_eos_token_id": 9},
    {"renormalize_logits": True},
    {"suppress_tokens": OFTEN, "begin_suppress_tokens": [3, 4, EOS], "bad_words_ids": [[13], [14]]},
    {"suppress_tokens": OFTEN, "begin_suppress_tokens": [3, 4, EOS], "renormalize_logits": True},
    {"min_length": 7},
    {"min_new_tokens": 5, "renormalize_logits": True},
    {"min_length": 6, "min_new_tokens": 3, "suppress_tokens": OFTEN, "forced_eos_token_id": EOS},
    {"min_new_tokens": 4, "eos_token_id": [EOS, 9]},
]


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: ", ".join(asked))
@pytest.mark.parametrize("num_beams", [1, 4])
def test_targets_and_scores_are_those_of_transformers(
    make_decided: MakeModel, sources: Source, ours: Recorder, num_beams: int, asked: dict[str, Any]
) -> None:
    model = make_decided(seed=num_beams)
    begun = torch.cat([torch.full((SENTENCES, 1), BOS), torch.randint(3, VOCAB, (SENTENCES, 2))], dim=-1)
    lengths: list[dict[str, Any]] = [{}, {"max_new_tokens": 3}, {"max_length": 9}, {"max_length_beyond_source": 2}]
    lengths.append({"decoder_input_ids": begun, "max_new_tokens": 4})
    others: list[dict[str, Any]] = [{}]
    if num_beams > 1:
        others += [{"num_return_sequences": num_beams, "length_penalty": 0.0}]
        others += [{"early_stopping": stop, "length_penalty": 1.5} for stop in (True, "never")]
    for length, other in [*zip(lengths, cycle(others)), *(({}, other) for other in others)]:
        options = {**length, **other, **asked}
        found = assert_the_same(model, ours, sources, num_beams=num_beams, **options)
        new = found[:, 3 if "decoder_input_ids" in length else 1 :]
        must_not_come = {*asked.get("suppress_tokens", []), *(word[0] for word in asked.get("bad_words_ids", []))}
        assert not set(new[new != PAD].tolist()) & (must_not_come - {EOS}), options
        if "forced_eos_token_id" in asked and "max_new_tokens" in length:
            whole = new[(new[:, -1] != PAD) & (len(new[0]) == length["max_new_tokens"])]
            assert (whole[:, -1] == asked["forced_eos_token_id"]).all()


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize(
    "asked",
    [
        {"bad_words_ids": [[5, 7]]},
        {"forced_eos_token_id": [EOS, 7]},
        {"forced_eos_token_id": EOS, "max_new_tokens": 1},
        {"no_repeat_ngram_size": 2},
    ],
    ids=str,
)
def test_what_it_cannot_is_left_to_transformers(
    make_decided: MakeModel, sources: Source, ours: Recorder, num_beams: int, asked: dict[str, Any]
) -> None:
    make_decided().generate(**sources, num_beams=num_beams, **{"max_new_tokens": 6, **asked})
    assert ours.times == 0


def test_the_probability_of_what_must_not_come_is_shared_only_if_asked_for(
    make_decided: MakeModel, sources: Source, ours: Recorder
) -> None:
    scores = []
    for renormalize in (False, True):
        make_decided().generate(**sources, num_beams=3, suppress_tokens=OFTEN, renormalize_logits=renormalize)
        scores.append(ours.scores)
    assert (scores[1] > scores[0]).all()
