"""`return_sequence_scores`: targets with their scores, from our own search and from transformers'."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from searches import BOS, EOS, PAD, SENTENCES, Recorder, Source, theirs
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteria

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.models import generation_vanilla, search_vanilla

MakeModel = Callable[..., Model]

PENALTIES = [
    {},
    {"length_penalty": 0.0},
    {"length_penalty": 1.7},
    {"length_penalty": 0.6, "length_penalty_type": "gnmt"},
]
LIMITS = [{}, {"max_new_tokens": 6}, {"max_length_beyond_source": 2}]


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


class After(StoppingCriteria):
    """Ends some targets before others, with a token that is otherwise like any."""

    def __init__(self, token: int):
        self.token = token

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return input_ids[:, -1] == self.token


def scored(model: Model, source: Source, **options: Any) -> tuple[Tensor, Tensor]:
    found = model.generate(**source, **options, return_sequence_scores=True)
    return found.sequences, found.sequences_scores


def scored_by_transformers(model: Model, source: Source, **options: Any) -> tuple[Tensor, Tensor]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generation_vanilla, "may_use_our_search", lambda *_: False)
        return scored(model, source, **options)


def assert_same(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], what: str = "") -> None:
    assert torch.equal(one[0], other[0]), what
    torch.testing.assert_close(one[1], other[1], msg=what)


def log_probabilities(model: Model, source: Source, targets: Tensor) -> Tensor:
    """Of each token after the first: (B, T - 1)."""
    logits = model(**source, decoder_input_ids=targets[:, :-1]).logits.float()
    return logits.log_softmax(-1).gather(-1, targets[:, 1:, None])[..., 0]


@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
def test_scores_of_beams_are_those_of_transformers(
    make_decided: MakeModel, sources: Source, ours: Recorder, penalty: dict[str, Any]
) -> None:
    model = make_decided()
    for number, stop in enumerate([False, True, "never"]):
        options = (
            {"num_beams": 4, "early_stopping": stop, "num_return_sequences": 1 + number} | penalty | LIMITS[number]
        )
        expected = theirs(model, sources, **options)
        times = ours.times
        assert_same(scored(model, sources, **options), expected, str(options))
        assert ours.times == times + 1
    assert_same(scored_by_transformers(model, sources, **options), expected, str(options))


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@pytest.mark.parametrize("penalty", PENALTIES, ids=str)
def test_scores_of_greedy_search_are_normalised_like_those_of_beams(
    make_decided: MakeModel, sources: Source, ours: Recorder, penalty: dict[str, Any], limit: dict[str, Any]
) -> None:
    model = make_decided()
    prefix = torch.tensor([[BOS, 9, EOS]]).expand(SENTENCES, -1)
    for given in ({}, {"decoder_input_ids": prefix}):
        options = penalty | limit | given
        targets, scores = scored(model, sources, **options)
        assert torch.equal(targets, theirs(model, sources, **options)[0])
        first = prefix.shape[1] if given else 1
        limits = torch.full((SENTENCES,), targets.shape[1])
        if "max_length_beyond_source" in limit:
            limits = (1 + 2 + sources["attention_mask"].sum(-1)).clamp(min=first + 1)
        log_probs = log_probabilities(model, sources, targets)
        for row, target in enumerate(targets.tolist()):
            ends = [place for place in range(first, len(target)) if target[place] == EOS]
            length = min([end + 1 for end in ends] + [int(limits[row])]) - first
            alpha = penalty.get("length_penalty", 1.0)
            divisor = ((5 + length) / 6 if "length_penalty_type" in penalty else length) ** alpha
            expected = log_probs[row, first - 1 : first - 1 + length].sum() / divisor
            torch.testing.assert_close(scores[row], expected, atol=1e-4, rtol=0)
        assert_same(scored_by_transformers(model, sources, **options), (targets, scores))
    assert ours.times == 2


def test_a_beam_and_greedy_search_give_the_same_target_the_same_score(make_decided: MakeModel, sources: Source) -> None:
    model = make_decided()
    for penalty in PENALTIES:
        greedy, greedy_scores = scored(model, sources, **penalty)
        beam, beam_scores = scored(model, sources, **penalty, num_beams=3)
        width = min(greedy.shape[1], beam.shape[1])
        are_same = (greedy[:, :width] == beam[:, :width]).all(-1)
        assert are_same.sum() > 3
        torch.testing.assert_close(greedy_scores[are_same], beam_scores[are_same])


@pytest.mark.parametrize("num_beams", [1, 3])
def test_nothing_else_is_returned_unless_it_is_asked_for(
    make_decided: MakeModel, sources: Source, ours: Recorder, num_beams: int
) -> None:
    model = make_decided()
    plain = model.generate(**sources, num_beams=num_beams)
    found = model.generate(**sources, num_beams=num_beams, return_sequence_scores=True)
    assert ours.times == 2
    other = model.generate(**sources, num_beams=num_beams, return_sequence_scores=True, repetition_penalty=1.0)
    assert list(found) == list(other) == ["sequences", "sequences_scores"]
    whole = model.generate(
        **sources,
        num_beams=num_beams,
        return_sequence_scores=True,
        generation_config=GenerationConfig(return_dict_in_generate=True, output_attentions=True),
    )
    assert {"sequences", "sequences_scores", "past_key_values", "decoder_attentions"} <= set(whole)
    assert ours.times == 2
    for outputs in (found, other, whole):
        assert type(outputs) is type(found)
        assert_same((outputs.sequences, outputs.sequences_scores), (plain, found.sequences_scores))
    assert torch.equal(model.generate(**sources, num_beams=num_beams, return_sequence_scores=False), plain)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_scores_may_be_changed(make_decided: MakeModel, sources: Source, num_beams: int) -> None:
    for found in scored(make_decided(), sources, num_beams=num_beams):
        with torch.enable_grad():
            found += 1  # refused for what was made in inference mode
        assert not found.is_inference()


@pytest.mark.parametrize("num_beams", [1, 3])
def test_scores_in_bfloat16_are_of_float32(make_decided: MakeModel, sources: Source, num_beams: int) -> None:
    model = make_decided().bfloat16()
    targets, scores = scored(model, sources, num_beams=num_beams, max_new_tokens=1)
    assert scores.dtype == torch.float32
    assert (scores != scores.bfloat16()).any()
    log_probs = log_probabilities(model, sources, targets)[:, 0]
    torch.testing.assert_close(scores, log_probs, atol=0.1, rtol=0)  # logits around 10 are 0.06 apart in bfloat16


def test_several_tokens_that_end_and_padding_that_is_no_end(
    make_decided: MakeModel, sources: Source, ours: Recorder
) -> None:
    model = make_decided()
    model.lm_head.weight[7] *= 1.3
    model.lm_head.weight[0] = model.lm_head.weight[EOS] * 1.2
    for ids in ({"eos_token_id": [EOS, 7, 9]}, {"eos_token_id": 0, "decoder_start_token_id": PAD}):
        for num_beams in (1, 3):
            options = ids | {"num_beams": num_beams}
            assert_same(scored(model, sources, **options), scored_by_transformers(model, sources, **options))
    assert ours.times == 4


def test_targets_that_other_criteria_end_are_scored_up_to_there(
    make_decided: MakeModel, sources: Source, ours: Recorder
) -> None:
    model = make_decided()
    model.lm_head.weight[PAD] = 0  # else it is sometimes said, and a target's end not seen
    plain = model.generate(**sources)
    token = int(plain[plain > EOS].mode().values)
    targets, scores = scored(model, sources, stopping_criteria=[After(token)], length_penalty=0.0)
    is_cut = (targets == token).any(-1)
    assert is_cut.sum() > 3
    assert (targets[is_cut] == PAD).any()
    assert (targets[:, 1:] == PAD)[~(targets == EOS).any(-1) & ~is_cut].sum() == 0
    expected = log_probabilities(model, sources, targets).where(targets[:, 1:] != PAD, 0).sum(-1)
    torch.testing.assert_close(scores, expected)
    assert ours.times == 1


def test_samples_have_the_log_probabilities_of_the_model_itself(make_decided: MakeModel, sources: Source) -> None:
    model = make_decided()
    targets, scores = scored(
        model, sources, do_sample=True, temperature=0.5, top_k=3, num_return_sequences=2, length_penalty=0.0
    )
    repeated = {name: value.repeat_interleave(2, dim=0) for name, value in sources.items()}
    log_probs = log_probabilities(model, repeated, targets)
    counts = (targets[:, 1:] == EOS).long()
    torch.testing.assert_close(scores, log_probs.where(counts.cumsum(-1) - counts == 0, 0).sum(-1))


def test_greedy_search_computes_probabilities_only_for_scores(
    make_decided: MakeModel, sources: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = make_decided(), []
    usual = search_vanilla.log_probability_of_largest
    monkeypatch.setattr(
        search_vanilla, "log_probability_of_largest", lambda *args, **named: calls.append(1) or usual(*args, **named)
    )
    model.generate(**sources, length_penalty=None)  # which greedy search does not look at either
    assert not calls
    scored(model, sources)
    assert calls


def test_samples_end_at_the_limits_of_their_sources(make_decided: MakeModel, sources: Source) -> None:
    options = {"do_sample": True, "num_return_sequences": 2, "length_penalty": 0.0, "max_length_beyond_source": 1}
    model = make_decided()
    model.lm_head.weight[EOS] = model.lm_head.weight[PAD] = -10 * model.lm_head.weight.mean(0)
    targets, scores = scored(model, sources, **options)
    repeated = {name: value.repeat_interleave(2, dim=0) for name, value in sources.items()}
    lengths = repeated["attention_mask"].sum(-1) + 1
    counts = (torch.arange(targets.shape[1] - 1) < lengths[:, None]) & ~(targets[:, :-1] == EOS).cummax(-1).values
    torch.testing.assert_close(scores, log_probabilities(model, repeated, targets).where(counts, 0).sum(-1))


def test_padding_that_is_said_counts_unless_it_may_be_none(make_decided: MakeModel, sources: Source) -> None:
    model = make_decided()
    plain = model.generate(**sources)
    model.lm_head.weight[PAD] = model.lm_head.weight[int(plain[plain > EOS].mode().values)] * 1.5
    targets, scores = scored(model, sources)
    assert (targets[:, -1] == PAD).any()
    assert_same(scored_by_transformers(model, sources), (targets, scores))
    _, scores = scored(model, sources, stopping_criteria=[After(PAD)])
    assert scores.isfinite().all()
