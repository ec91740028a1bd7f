"""Our own greedy and beam search: what transformers' own finds, with less work."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from searches import EOS, PAD, SENTENCES, VOCAB, Recorder, Source, assert_the_same, theirs
from torch import Tensor, nn
from transformers import DynamicCache, StaticCache

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.models import decoding_vanilla, kernels_vanilla, search_vanilla
from hf_vanilla.models.search_vanilla import ROUND, largest, places_of


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


STOPS = [False, True, "never"]
LIMITS = [{}, {"max_new_tokens": 5}, {"max_length_beyond_source": 2}]


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("num_beams", [1, 2, 3, 5, 8])
def test_the_same_targets_and_scores(
    make_decided: Callable[..., Model], sources: Source, ours: Recorder, num_beams: int, norm_first: bool
) -> None:
    model = make_decided(seed=num_beams, norm_first=norm_first)
    searches = (
        [{}] * len(LIMITS)
        if num_beams == 1
        else [
            {"early_stopping": stop, "length_penalty": penalty} for stop in STOPS for penalty in (-1.0, 0.0, 1.0, 2.5)
        ]
    )
    if num_beams > 1:
        searches += [{"length_penalty_type": "gnmt", "length_penalty": 0.6, "early_stopping": stop} for stop in STOPS]
        searches += [{"num_return_sequences": number} for number in (2, num_beams)]
    lengths = set()
    for number, search in enumerate(searches):  # with two of the three limits, each with other beams
        options = {"num_beams": num_beams} | search | LIMITS[(number + num_beams + norm_first) % len(LIMITS)]
        found = assert_the_same(model, ours, sources, **options)
        lengths |= set((found != PAD).sum(-1).tolist())
    assert len(lengths) > 10


def test_a_padding_token_of_number_0_and_several_that_end(
    make_decided: Callable[..., Model], sources: Source, ours: Recorder
) -> None:
    ids = {"pad_token_id": 0, "bos_token_id": PAD, "decoder_start_token_id": PAD, "eos_token_id": [EOS, 7, 9]}
    model = make_decided()
    model.lm_head.weight[7] *= 1.3
    model.generation_config.update(**ids)
    for options in ({}, {"num_beams": 4}, {"num_beams": 3, "num_return_sequences": 3}):
        targets, _ = theirs(model, sources, **options)
        torch.testing.assert_close(model.generate(**sources, **options), targets, rtol=0, atol=0)
    assert ours.times == 3


class Counting(nn.Linear):
    """A linear layer of somebody's: our search calls it, and it counts the sentences of each call."""

    def forward(self, states: Tensor) -> Tensor:
        vars(self).setdefault("rows", []).append(len(states))
        return super().forward(states)


@pytest.mark.parametrize("at_once", [1, 5 * VOCAB * 4])
def test_logits_in_parts(
    make_decided: Callable[..., Model], sources: Source, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    model = make_decided()
    expected, _ = theirs(model, sources, num_beams=5)
    model.lm_head.__class__ = Counting
    monkeypatch.setattr(search_vanilla, "CPU_LOGITS", at_once)
    assert torch.equal(model.generate(**sources, num_beams=5), expected)
    assert max(model.lm_head.rows[SENTENCES:]) == max(1, at_once // (5 * VOCAB))


@pytest.mark.parametrize("size", [7, 41, 100, 997])
@pytest.mark.parametrize("width", [1, 3, 6])
def test_the_largest_by_groups_are_the_largest_of_all(size: int, width: int) -> None:
    logits = torch.randn(9, width, size)
    scores = torch.randn(9, width)
    for number in (1, width, min(12, width * size)):
        found, places = largest(logits, scores, number)
        expected = (logits - logits.amax(-1, keepdim=True) + scores[..., None]).flatten(1).topk(number)
        torch.testing.assert_close(found, expected.values, rtol=0, atol=0)
        assert torch.equal(places, expected.indices)


def test_of_equal_logits_greedy_search_takes_the_first() -> None:
    logits = torch.zeros(1, 1, 50)
    logits[..., [13, 20, 49]] = 1
    assert largest(logits, torch.zeros(1, 1), 1)[1].item() == 13


def test_sentences_that_go_on_stay_in_their_places_or_fill_gaps() -> None:
    assert places_of(torch.tensor([True, True])).tolist() == [0, 1]
    assert places_of(torch.tensor([False, False])).tolist() == []
    assert places_of(torch.tensor([False, True, True, False, True, True])).tolist() == [4, 1, 2, 5]
    assert places_of(torch.tensor([False, True, False, False, True, True])).tolist() == [4, 1, 5, 3]
    for _ in range(50):
        is_open = torch.rand(14) < 0.6
        places = places_of(is_open).tolist()
        assert len(places) == len(set(places))
        assert set(places) >= set(is_open.nonzero()[:, 0].tolist())
        assert len(places) - is_open.sum() < ROUND
        assert len(places) % ROUND == 0 or len(places) == len(is_open)
        assert all(places[i] == i for i in range(len(places)) if is_open[i])


def test_what_is_found_may_be_changed(make_decided: Callable[..., Model], sources: Source) -> None:
    for num_beams in (1, 2):
        found = make_decided().generate(**sources, num_beams=num_beams)
        with torch.enable_grad():
            found += 1  # refused for what was made in inference mode
        assert not found.is_inference()


@pytest.mark.parametrize("num_beams", [1, 4, 20])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("length", [3, 12, 20])
def test_few_and_many_keys_are_attended_to(
    make_decided: Callable[..., Model],
    monkeypatch: pytest.MonkeyPatch,
    num_beams: int,
    implementation: str,
    length: int,
) -> None:
    monkeypatch.setattr(kernels_vanilla, "MIN_ONEDNN_OPS", 0)
    model = make_decided(attn_implementation=implementation)
    sources = {"input_ids": torch.randint(3, VOCAB, (SENTENCES, length))}
    for mask in (
        {},
        {"attention_mask": (torch.rand(SENTENCES, length) < 0.7).long().index_fill(1, torch.tensor(0), 1)},
    ):
        expected, _ = theirs(model, sources | mask, num_beams=num_beams)
        assert torch.equal(model.generate(**sources, **mask, num_beams=num_beams), expected)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_positions_come_in_parts_and_learned_ones_end(
    make_decided: Callable[..., Model], sources: Source, ours: Recorder, monkeypatch: pytest.MonkeyPatch, num_beams: int
) -> None:
    monkeypatch.setattr(decoding_vanilla, "POSITIONS_AT_ONCE", 4)
    for positions in ("sinusoidal", "learned"):
        model = make_decided(position_embedding_type=positions, max_position_embeddings=18)
        expected, _ = theirs(model, sources, num_beams=num_beams, max_length=18)
        assert torch.equal(model.generate(**sources, num_beams=num_beams, max_length=18), expected)
    with pytest.raises(ValueError, match="of 19 tokens is longer than the 18 learned positions"):
        model.generate(**sources, num_beams=num_beams, max_length=30)
    assert ours.times == 3


def test_the_cache_is_of_the_kind_that_is_asked_for(make_decided: Callable[..., Model], sources: Source) -> None:
    generate = partial(make_decided().generate, **sources, max_new_tokens=4, return_dict_in_generate=True)
    expected = generate(use_cache=False)
    assert expected.past_key_values is None
    for kind, made in ((None, DynamicCache), ("dynamic", DynamicCache), ("static", StaticCache)):
        found = generate(cache_implementation=kind)
        assert type(found.past_key_values.self_attention_cache) is made
        assert torch.equal(found.sequences, expected.sequences)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_what_is_finished_is_not_computed_any_more(
    make_decided: Callable[..., Model], sources: Source, num_beams: int
) -> None:
    model = make_decided()
    head, keys = model.lm_head, model.get_decoder().layers[0].cross_attn.k_proj
    head.__class__ = keys.__class__ = Counting
    found = model.generate(**sources, num_beams=num_beams, max_length_beyond_source=2)
    assert keys.rows == [SENTENCES]  # of each sentence once, whatever the number of hypotheses
    assert head.rows[0] == SENTENCES
    afterwards = head.rows[1:]
    assert afterwards == sorted(afterwards, reverse=True)
    assert afterwards[-1] < afterwards[0] / 2
    assert {number % ROUND for number in afterwards} == {0}
    if num_beams == 1:
        are_open = (found[:, 1:] != PAD).sum(0)
        assert head.rows == [-(-number // ROUND) * ROUND for number in are_open.tolist()]
