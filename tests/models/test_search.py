"""Our own greedy and beam search: what transformers' own finds, with less work."""

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin, StaticCache, StoppingCriteria, TextStreamer

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.models import decoding_vanilla, generation_vanilla, products_vanilla, search_vanilla
from hf_vanilla.models.generation_vanilla import VanillaGenerationMixin
from hf_vanilla.models.products_vanilla import (
    ENOUGH,
    ENOUGH_IN_ORDER,
    LITTLE,
    MANY,
    SHORT,
    _openmp,
    fast_on_cpu,
    linear_map,
    linear_maps,
    one_thread_for_little,
)
from hf_vanilla.models.search_vanilla import ROUND, largest, places_of

BOS, PAD, EOS = 0, 1, 2
VOCAB, SENTENCES = 41, 24

Source = dict[str, Tensor]


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def make_decided(make_model: Callable[..., Model]) -> Callable[..., Model]:
    """Random models that end early and late and prefer some tokens, in float64: what is near is not equal."""

    def make(seed: int = 1, **changes: object) -> Model:
        torch.manual_seed(seed)
        model = make_model(vocab_size=VOCAB, tie_word_embeddings=False, **changes).double()
        model.lm_head.weight.mul_(1.5)
        model.lm_head.weight[EOS] *= 1.3
        model.generation_config.max_length = 30
        return model

    return make


@pytest.fixture
def source() -> Source:
    lengths = torch.randint(1, 12, (SENTENCES,))
    ids = torch.randint(3, VOCAB, (SENTENCES, 12))
    mask = (torch.arange(12) <= lengths[:, None]).long()
    return {"input_ids": ids.where(mask.bool(), PAD), "attention_mask": mask}


class Recorder:
    """Counts how often our own searches are taken, and keeps the scores that they return."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.times, self.scores = 0, torch.empty(0)
        self.beam_search, self.greedy_search = generation_vanilla.beam_search, generation_vanilla.greedy_search
        monkeypatch.setattr(generation_vanilla, "beam_search", self._beam_search)
        monkeypatch.setattr(generation_vanilla, "greedy_search", self._greedy_search)

    def _beam_search(self, *arguments: Any) -> tuple[Tensor, Tensor]:
        self.times += 1
        targets, self.scores = self.beam_search(*arguments)
        return targets, self.scores

    def _greedy_search(self, *arguments: Any) -> Tensor:
        self.times += 1
        return self.greedy_search(*arguments)


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    return Recorder(monkeypatch)


def theirs(model: Model, source: Source, **options: Any) -> tuple[Tensor, Tensor | None]:
    """What transformers' own search finds, called past ours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VanillaGenerationMixin, "_beam_search", GenerationMixin._beam_search)
        patch.setattr(VanillaGenerationMixin, "_sample", GenerationMixin._sample)
        found = model.generate(**source, **options, return_dict_in_generate=True, output_scores=True)
    return found.sequences, found.get("sequences_scores")


STOPS = [False, True, "never"]
LIMITS = [{}, {"max_new_tokens": 5}, {"max_length_beyond_source": 2}]


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("num_beams", [1, 2, 3, 5, 8])
def test_the_same_targets_and_scores(
    make_decided: Callable[..., Model], source: Source, ours: Recorder, num_beams: int, norm_first: bool
) -> None:
    model = make_decided(seed=num_beams, norm_first=norm_first)
    searches = (
        [{}]
        if num_beams == 1
        else [
            {"early_stopping": stop, "length_penalty": penalty} for stop in STOPS for penalty in (-1.0, 0.0, 1.0, 2.5)
        ]
    )
    if num_beams > 1:
        searches += [{"length_penalty_type": "gnmt", "length_penalty": 0.6, "early_stopping": stop} for stop in STOPS]
        searches += [{"num_return_sequences": number} for number in (2, num_beams)]
    lengths = set()
    for search in searches:
        for limit in LIMITS:
            options = {"num_beams": num_beams} | search | limit
            targets, scores = theirs(model, source, **options)
            times = ours.times
            found = model.generate(**source, **options)
            assert ours.times == times + 1
            torch.testing.assert_close(found, targets, rtol=0, atol=0, msg=str(options))
            if scores is not None:
                torch.testing.assert_close(ours.scores, scores, msg=str(options))
            lengths |= set((found != PAD).sum(-1).tolist())
    assert len(lengths) > 10


def test_a_padding_token_of_number_0_and_several_that_end(
    make_decided: Callable[..., Model], source: Source, ours: Recorder
) -> None:
    ids = {"pad_token_id": 0, "bos_token_id": PAD, "decoder_start_token_id": PAD, "eos_token_id": [EOS, 7, 9]}
    model = make_decided()
    model.lm_head.weight[7] *= 1.3
    model.generation_config.update(**ids)
    for options in ({}, {"num_beams": 4}, {"num_beams": 3, "num_return_sequences": 3}):
        targets, _ = theirs(model, source, **options)
        torch.testing.assert_close(model.generate(**source, **options), targets, rtol=0, atol=0)
    assert ours.times == 3


@pytest.mark.parametrize("at_once", [1, 5 * VOCAB * 4])
def test_logits_in_parts(
    make_decided: Callable[..., Model], source: Source, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    model = make_decided()
    expected, _ = theirs(model, source, num_beams=5)
    sizes: list[int] = []
    model.lm_head.register_forward_hook(lambda _, inputs, __: sizes.append(inputs[0].shape[0]))
    monkeypatch.setattr(search_vanilla, "LOGITS_AT_ONCE", at_once)
    assert torch.equal(model.generate(**source, num_beams=5), expected)
    assert max(sizes[SENTENCES:]) == max(1, at_once // (5 * VOCAB))


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


def times(operation: str, act: Callable[[], object]) -> int:
    with torch.profiler.profile() as profile:
        act()
    return sum(event.count for event in profile.key_averages() if event.key == operation)


products_by_onednn = partial(times, "mkldnn::_linear_pointwise")


def test_products_by_onednn_are_those_of_pytorch() -> None:
    linears = [nn.Linear(33, 20), nn.Linear(33, 7), nn.Linear(33, MANY // 33 + 1), nn.Linear(33, 20, bias=False)]
    states = torch.randn(9, 33)

    def act() -> None:
        for linear in linears:
            torch.testing.assert_close(linear_map(linear, rows=ENOUGH)(states), linear(states))
        for found, linear in zip(linear_maps(linears[:2], rows=ENOUGH)(states), linears, strict=False):
            torch.testing.assert_close(found, linear(states))

    assert products_by_onednn(act) == len(linears) + 1


def test_fewer_rows_are_enough_for_many_weights_which_are_reordered() -> None:
    states, many, few = torch.randn(ENOUGH // MANY - 1, 33), nn.Linear(33, MANY // 33 + 1), nn.Linear(33, MANY // 33)
    assert products_by_onednn(lambda: linear_map(many, rows=len(states))(states)) == 1
    assert products_by_onednn(lambda: linear_map(few, rows=len(states))(states)) == 0
    assert products_by_onednn(lambda: linear_map(many, rows=ENOUGH_IN_ORDER // MANY - 1)(states)) == 0


class Distributed(Tensor):
    pass


def test_products_by_onednn_are_for_large_ones_of_float32_without_gradients() -> None:
    large, states = nn.Linear(500, 500), torch.randn(1, ENOUGH // 500 // 500, 500)
    expected = large(states)

    def act() -> None:
        torch.testing.assert_close(large(states), expected)  # the only one of these
        large(states[:, 1:])
        nn.functional.linear(states, large.weight.as_subclass(Distributed))
        large.double()(states.double())
        large.float()
        with torch.autocast("cpu", torch.bfloat16):
            large(states)
        with torch.enable_grad():
            large(states).sum().backward()

    with fast_on_cpu(usual=ENOUGH):
        assert products_by_onednn(act) == 1
    with fast_on_cpu(usual=ENOUGH - 1):
        assert products_by_onednn(act) == 0
    assert products_by_onednn(act) == 0


def test_the_same_targets_with_products_by_onednn(
    make_decided: Callable[..., Model], source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_decided().float()
    expected = [theirs(model, source, num_beams=num_beams)[0] for num_beams in (1, 4)]
    monkeypatch.setattr(products_vanilla, "ENOUGH", 0)
    for num_beams, targets in zip((1, 4), expected, strict=True):
        of_encoder = products_by_onednn(partial(theirs, model, source, num_beams=num_beams))
        assert of_encoder == 6 * model.config.encoder_layers
        assert products_by_onednn(partial(model.generate, **source, num_beams=num_beams)) > of_encoder
        assert torch.equal(model.generate(**source, num_beams=num_beams), targets)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_under_autocast_types_fit(
    make_decided: Callable[..., Model],
    source: Source,
    ours: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    num_beams: int,
    implementation: str,
) -> None:
    monkeypatch.setattr(products_vanilla, "ENOUGH", 0)
    model = make_decided(attn_implementation=implementation).float()
    with torch.autocast("cpu", torch.bfloat16):
        found = model.generate(**source, num_beams=num_beams)
    assert len(found) == SENTENCES
    assert ours.times == 1


def test_what_is_found_may_be_changed(make_decided: Callable[..., Model], source: Source) -> None:
    for num_beams in (1, 2):
        found = make_decided().generate(**source, num_beams=num_beams)
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
    monkeypatch.setattr(products_vanilla, "ENOUGH", 0)
    model = make_decided(attn_implementation=implementation)
    source = {"input_ids": torch.randint(3, VOCAB, (SENTENCES, length))}
    for mask in (
        {},
        {"attention_mask": (torch.rand(SENTENCES, length) < 0.7).long().index_fill(1, torch.tensor(0), 1)},
    ):
        expected, _ = theirs(model, source | mask, num_beams=num_beams)
        assert torch.equal(model.generate(**source, **mask, num_beams=num_beams), expected)


FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"


def test_in_the_encoder_attention_is_by_products(make_decided: Callable[..., Model], source: Source) -> None:
    model = make_decided()
    encode = partial(model.get_encoder(), **source)
    expected = encode().last_hidden_state
    with fast_on_cpu(usual=ENOUGH):
        torch.testing.assert_close(encode().last_hidden_state, expected)
        assert times(FUSED, encode) == 0
        with torch.enable_grad():
            assert times(FUSED, encode) == model.config.encoder_layers
    with fast_on_cpu(usual=ENOUGH - 1):
        assert times(FUSED, encode) == model.config.encoder_layers


@pytest.mark.parametrize("length", [1, 15, 40])
def test_attention_by_products_is_that_of_pytorch(length: int) -> None:
    query, key, value = torch.randn(3, 2, 5, 6), torch.randn(3, 2, length, 6), torch.randn(3, 2, length, 7)
    sees = torch.rand(3, 1, 5, length) < 0.6
    sees[..., 0] = True
    attend = partial(nn.functional.scaled_dot_product_attention, query, key, value, scale=0.3)
    for mask in (None, sees, sees[:, :, :1], torch.randn(3, 2, 5, length), torch.randn(3, 1, 1, length)):
        expected = attend(attn_mask=mask)
        with fast_on_cpu(usual=ENOUGH):
            torch.testing.assert_close(attend(attn_mask=mask), expected)
            assert times("aten::baddbmm", partial(attend, attn_mask=mask)) == 1


def test_other_attention_is_left_to_pytorch() -> None:
    query = torch.randn(2, 2, 5, 6)
    long = torch.randn(2, 2, SHORT + 1, 6)
    attend, plain = nn.functional.scaled_dot_product_attention, {"attn_mask": None, "scale": 1.0}
    with fast_on_cpu(usual=ENOUGH):
        assert times("aten::baddbmm", partial(attend, query, long, long, **plain)) == 0
        assert times("aten::baddbmm", partial(attend, query, query, query, is_causal=True, **plain)) == 0
        assert times("aten::baddbmm", partial(attend, query, query, query, dropout_p=0.5, **plain)) == 0
        assert times("aten::baddbmm", partial(attend, query[0], query[0], query[0], **plain)) == 0
        assert times("aten::baddbmm", partial(attend, query, query[:, :1], query[:, :1], enable_gqa=True, **plain)) == 0


def threads_elsewhere() -> int:
    with ThreadPoolExecutor(1) as another:
        return another.submit(torch.get_num_threads).result()


@pytest.mark.skipif(_openmp() is None, reason="PyTorch does not compute with OpenMP's threads here")
def test_one_thread_computes_what_is_little_and_no_other_thread_is_told() -> None:
    number = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread_for_little(usual=LITTLE + 1):
            assert torch.get_num_threads() == 2
        with one_thread_for_little(usual=LITTLE):
            assert torch.get_num_threads() == 1
            assert threads_elsewhere() == 2
        with pytest.raises(ValueError, match="a mistake"), one_thread_for_little(usual=LITTLE):
            raise ValueError("a mistake")
        assert torch.get_num_threads() == threads_elsewhere() == 2
    finally:
        torch.set_num_threads(number)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_positions_come_in_parts_and_learned_ones_end(
    make_decided: Callable[..., Model], source: Source, ours: Recorder, monkeypatch: pytest.MonkeyPatch, num_beams: int
) -> None:
    monkeypatch.setattr(decoding_vanilla, "POSITIONS_AT_ONCE", 4)
    for positions in ("sinusoidal", "learned"):
        model = make_decided(position_embedding_type=positions, max_position_embeddings=18)
        expected, _ = theirs(model, source, num_beams=num_beams, max_length=18)
        assert torch.equal(model.generate(**source, num_beams=num_beams, max_length=18), expected)
    with pytest.raises(ValueError, match="of 19 tokens is longer than the 18 learned positions"):
        model.generate(**source, num_beams=num_beams, max_length=30)
    assert ours.times == 3


def test_the_cache_is_of_the_kind_that_is_asked_for(make_decided: Callable[..., Model], source: Source) -> None:
    generate = partial(make_decided().generate, **source, max_new_tokens=4, return_dict_in_generate=True)
    expected = generate(use_cache=False)
    assert expected.past_key_values is None
    for kind, made in ((None, DynamicCache), ("dynamic", DynamicCache), ("static", StaticCache)):
        found = generate(cache_implementation=kind)
        assert type(found.past_key_values.self_attention_cache) is made
        assert torch.equal(found.sequences, expected.sequences)


class Never(StoppingCriteria):
    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize(
    "option",
    [
        {"no_repeat_ngram_size": 2},
        {"min_new_tokens": 3},
        {"return_dict_in_generate": True},
        {"do_sample": True},
        {"use_cache": False},
        {"cache_implementation": "static"},
        {"past_key_values": EncoderDecoderCache(DynamicCache(), DynamicCache())},
        {"stopping_criteria": [Never()]},
        {"decoder_input_ids": torch.full((SENTENCES, 2), 5)},
        {"max_time": 100.0},
    ],
    ids=lambda option: next(iter(option)),
)
def test_transformers_own_search_is_taken_where_more_is_asked_for(
    make_decided: Callable[..., Model], source: Source, ours: Recorder, option: dict[str, Any], num_beams: int
) -> None:
    make_decided().generate(**source, **copy.deepcopy(option), num_beams=num_beams)
    assert ours.times == 0


def test_what_happens_when_layers_are_called_still_happens(
    make_decided: Callable[..., Model], source: Source, ours: Recorder
) -> None:
    model = make_decided()
    expected = model.generate(**source, num_beams=2)
    assert ours.times == 1
    calls = []
    layer = model.get_decoder().layers[-1]
    for watched in (model, model.model, model.get_decoder(), layer, layer.cross_attn, layer.self_attn.k_proj):
        handle = watched.register_forward_hook(lambda *_: calls.append(1))
        assert torch.equal(model.generate(**source, num_beams=2), expected)
        handle.remove()
        assert calls
        calls.clear()
    usual = model.forward
    model.forward = lambda *arguments, **kwargs: (calls.append(1), usual(*arguments, **kwargs))[1]
    assert torch.equal(model.generate(**source, num_beams=2), expected)
    assert calls
    assert ours.times == 1


def test_dropout_of_a_model_in_training_is_that_of_transformers(
    make_decided: Callable[..., Model], source: Source, ours: Recorder
) -> None:
    model = make_decided(dropout=0.2, activation_dropout=0.3).train()
    torch.manual_seed(3)
    expected, _ = theirs(model, source, num_beams=2)
    torch.manual_seed(3)
    assert torch.equal(model.generate(**source, num_beams=2), expected)
    model.get_decoder().layers[0].feed_forward.eval()
    model.generate(**source, num_beams=1)
    assert ours.times == 0


def test_projections_that_are_more_than_linear_maps(
    make_decided: Callable[..., Model], source: Source, ours: Recorder
) -> None:
    class Adapted(nn.Linear):
        def forward(self, states: Tensor) -> Tensor:
            return super().forward(states) + states.roll(1, dims=-1)

    model = make_decided()
    plain = model.generate(**source, num_beams=3)
    for layer in model.get_decoder().layers:
        layer.self_attn.v_proj.__class__ = Adapted
    expected, _ = theirs(model, source, num_beams=3)
    assert torch.equal(model.generate(**source, num_beams=3), expected)
    assert not torch.equal(expected, plain)
    assert ours.times == 2


def test_a_streamer_gets_its_tokens(make_decided: Callable[..., Model], source: Source, ours: Recorder) -> None:
    class Kept(TextStreamer):
        def __init__(self) -> None:
            self.tokens: list[int] = []

        def put(self, value: Tensor) -> None:
            self.tokens += value.flatten().tolist()

        def end(self) -> None:
            pass

    kept = Kept()
    found = make_decided().generate(input_ids=source["input_ids"][:1], streamer=kept)
    assert kept.tokens == found[0].tolist()
    assert ours.times == 0


@pytest.mark.parametrize("num_beams", [1, 4])
def test_what_is_finished_is_not_computed_any_more(
    make_decided: Callable[..., Model], source: Source, monkeypatch: pytest.MonkeyPatch, num_beams: int
) -> None:
    model = make_decided()
    rows: dict[str, list[int]] = {"head": [], "keys": []}
    model.lm_head.register_forward_hook(lambda _, inputs, __: rows["head"].append(inputs[0].shape[0]))
    cross_attention = model.get_decoder().layers[0].cross_attn
    usual = cross_attention.keys_and_values
    monkeypatch.setattr(
        cross_attention, "keys_and_values", lambda states: (rows["keys"].append(len(states)), usual(states))[1]
    )
    found = model.generate(**source, num_beams=num_beams, max_length_beyond_source=2)
    assert rows["keys"] == [SENTENCES]  # of each sentence once, whatever the number of hypotheses
    assert rows["head"][0] == SENTENCES
    afterwards = rows["head"][1:]
    assert afterwards == sorted(afterwards, reverse=True)
    assert afterwards[-1] < afterwards[0] / 2
    assert {number % ROUND for number in afterwards} == {0}
    if num_beams == 1:
        are_open = (found[:, 1:] != PAD).sum(0)
        assert rows["head"] == [-(-number // ROUND) * ROUND for number in are_open.tolist()]
