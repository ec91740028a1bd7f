"""Targets that begin with given tokens: our own search continues them as transformers' does."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from searches import BOS, EOS, PAD, SENTENCES, VOCAB, Recorder, Source, assert_the_same, theirs
from torch import Tensor

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.models import decoding_vanilla, guard_vanilla

MakeModel = Callable[..., Model]

either_search = pytest.mark.parametrize("num_beams", [1, 4])


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def prefixes(length: int) -> Tensor:
    """The start token and any others, also those that end and pad."""
    return torch.cat([torch.full((SENTENCES, 1), BOS), torch.randint(1, VOCAB, (SENTENCES, length - 1))], dim=-1)


def padded_left(length: int) -> dict[str, Tensor]:
    """Prefixes of all lengths up to this one."""
    ids, number = prefixes(length), torch.arange(SENTENCES) % length
    starts = number[:, None]
    mask = (torch.arange(length) >= starts).long()
    ids = ids.scatter(1, starts, BOS).where(mask.bool(), PAD)
    return {"decoder_input_ids": ids, "decoder_attention_mask": mask}


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("num_beams", [1, 2, 5])
def test_prefixes_of_one_length_are_continued_to_the_same_targets_and_scores(
    make_decided: MakeModel, sources: Source, ours: Recorder, num_beams: int, norm_first: bool
) -> None:
    model = make_decided(seed=num_beams, norm_first=norm_first)
    searches: list[dict[str, Any]] = [{}, {"max_new_tokens": 5}, {"max_length_beyond_source": 3}]
    if num_beams > 1:
        stops = [{"early_stopping": stop, "length_penalty": 1.5} for stop in (False, True, "never")]
        gnmt = {"length_penalty_type": "gnmt", "length_penalty": 0.6, "early_stopping": "never"}
        searches += [*stops, gnmt, {"num_return_sequences": 2}, {"num_return_sequences": num_beams}]
    lengths = set()
    for number, options in enumerate(searches):
        given = prefixes((2, 3, 7)[number % 3])
        found = assert_the_same(model, ours, sources, decoder_input_ids=given, num_beams=num_beams, **options)
        assert torch.equal(found[:, : given.shape[1]].unique(dim=0), given.unique(dim=0))
        lengths.add(found.shape[1])
    assert len(lengths) > 1


@either_search
@pytest.mark.parametrize("length", [16, 17, 40])
def test_long_prefixes(
    make_decided: MakeModel,
    sources: Source,
    ours: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    num_beams: int,
    length: int,
) -> None:
    monkeypatch.setattr(decoding_vanilla, "POSITIONS_AT_ONCE", 6)
    given = {"decoder_input_ids": prefixes(length), "max_length": 60, "num_beams": num_beams}
    assert_the_same(make_decided(), ours, sources, **given)


@either_search
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_prefixes_that_are_padded_left(
    make_decided: MakeModel, sources: Source, ours: Recorder, num_beams: int, implementation: str, positions: str
) -> None:
    model = make_decided(attn_implementation=implementation, position_embedding_type=positions)
    for length in (3, 20):
        given = padded_left(length)
        for limits in ({"max_new_tokens": 20}, {"max_length_beyond_source": 3, "max_length": 40}):
            assert_the_same(model, ours, sources, **given, **limits, num_beams=num_beams)
    given["decoder_attention_mask"] = given["decoder_attention_mask"].bool()
    assert_the_same(model, ours, sources, **given, num_beams=num_beams)
    given["decoder_attention_mask"][:, 12] = False  # a token in the middle that nothing may see
    assert_the_same(model, ours, sources, **given, num_beams=num_beams)


@either_search
def test_padding_in_front_changes_no_target(make_decided: MakeModel, sources: Source, num_beams: int) -> None:
    model, given = make_decided(), prefixes(4)
    alone = model.generate(**sources, decoder_input_ids=given, num_beams=num_beams, max_new_tokens=9)
    padding = torch.full((SENTENCES, 3), PAD)
    mask = torch.cat([torch.zeros_like(padding), torch.ones_like(given)], dim=-1)
    given = {"decoder_input_ids": torch.cat([padding, given], dim=-1), "decoder_attention_mask": mask}
    # As no row begins with the start token, transformers would put one in front of the padding.
    given["decoder_input_ids"][:, 0] = BOS
    found = model.generate(**sources, **given, num_beams=num_beams, max_new_tokens=9)
    assert torch.equal(found[:, 3:], alone)


@either_search
def test_a_start_token_that_is_missing_is_put_in_front(
    make_decided: MakeModel, sources: Source, ours: Recorder, num_beams: int
) -> None:
    model, given = make_decided(), prefixes(4)
    expected = assert_the_same(model, ours, sources, decoder_input_ids=given, num_beams=num_beams)
    short = {"decoder_input_ids": given[:, 1:].int(), "decoder_attention_mask": torch.ones_like(given[:, 1:])}
    assert torch.equal(assert_the_same(model, ours, sources, **short, num_beams=num_beams), expected)
    nothing = {"decoder_input_ids": None, "decoder_attention_mask": None}
    plain = model.generate(**sources, num_beams=num_beams)
    assert torch.equal(assert_the_same(model, ours, sources, **nothing, num_beams=num_beams), plain)


@either_search
def test_prefixes_after_sources_that_are_encoded_and_in_bfloat16(
    make_decided: MakeModel, sources: Source, ours: Recorder, num_beams: int
) -> None:
    model = make_decided()
    given = {"decoder_input_ids": prefixes(5), "num_beams": num_beams}
    expected = model.generate(**sources, **given)
    encoded = {"encoder_outputs": model.get_encoder()(**sources), "attention_mask": sources["attention_mask"]}
    assert torch.equal(model.generate(**encoded, **given), expected)
    assert ours.times == 2
    found = model.bfloat16().generate(**sources, **given, max_new_tokens=1)
    assert torch.equal(found, theirs(model, sources, **given, max_new_tokens=1)[0])


@either_search
def test_several_tokens_that_end_and_padding_of_number_0(
    make_decided: MakeModel, sources: Source, ours: Recorder, num_beams: int
) -> None:
    model = make_decided()
    ids = {"pad_token_id": 0, "bos_token_id": PAD, "decoder_start_token_id": PAD, "eos_token_id": [EOS, 7, 9]}
    model.lm_head.weight[7] *= 1.3
    model.generation_config.update(**ids)
    given = prefixes(4)
    given[:, 0] = PAD
    given[::2, -1] = EOS  # a prefix that ends is continued all the same
    assert_the_same(model, ours, sources, decoder_input_ids=given, num_beams=num_beams)


@either_search
def test_prefixes_that_our_search_does_not_follow_are_left_to_transformers(
    make_decided: MakeModel, sources: Source, ours: Recorder, num_beams: int
) -> None:
    model, given = make_decided(), prefixes(4)
    mask = torch.ones_like(given)
    mask[3, -1] = 0
    options = {"decoder_input_ids": given, "decoder_attention_mask": mask, "num_beams": num_beams}
    targets, _ = theirs(model, sources, **options)
    assert torch.equal(model.generate(**sources, **options), targets)
    encoded = {"encoder_outputs": model.get_encoder()(**sources), "attention_mask": sources["attention_mask"]}
    assert torch.equal(model.generate(**encoded, **options), targets)
    positions = torch.arange(4).flip(0).expand(SENTENCES, -1)
    model.generate(**sources, decoder_input_ids=given, decoder_position_ids=positions, num_beams=num_beams)
    with pytest.raises((RuntimeError, ValueError)):
        model.generate(**sources, decoder_input_ids=given, decoder_attention_mask=mask[:, :2], num_beams=num_beams)
    assert ours.times == 0


def test_several_prefixes_of_a_single_source_are_left_to_transformers(
    make_decided: MakeModel, sources: Source, ours: Recorder
) -> None:
    model, given = make_decided(), prefixes(4)
    source = {"input_ids": sources["input_ids"][:1]}
    expected, _ = theirs(model, source, decoder_input_ids=given)
    assert expected.shape[0] == SENTENCES
    assert torch.equal(model.generate(**source, decoder_input_ids=given), expected)
    assert ours.times == 0


@either_search
def test_prefixes_that_leave_no_room_are_refused(
    make_decided: MakeModel, sources: Source, ours: Recorder, num_beams: int
) -> None:
    model = make_decided(position_embedding_type="learned", max_position_embeddings=18)
    with pytest.raises(ValueError, match="Input length of decoder_input_ids is 8, but `max_length` is set to 8"):
        model.generate(**sources, decoder_input_ids=prefixes(8), max_length=8, num_beams=num_beams)
    for length in (19, 25):
        with pytest.raises(ValueError, match=f"of {length} tokens is longer than the 18 learned positions"):
            model.generate(**sources, decoder_input_ids=prefixes(length), num_beams=num_beams)
    assert_the_same(model, ours, sources, decoder_input_ids=prefixes(17), max_length=18, num_beams=num_beams)


def test_a_prefix_is_read_in_one_pass(
    make_decided: MakeModel, sources: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, widths = make_decided(), []
    usual = decoding_vanilla.IncrementalDecoder._states

    def counted(self: Any, tokens: Tensor, *arguments: Any) -> Tensor:
        widths.append(tokens.shape[1])
        return usual(self, tokens, *arguments)

    monkeypatch.setattr(decoding_vanilla.IncrementalDecoder, "_states", counted)
    model.generate(**sources, num_beams=4, max_new_tokens=2)
    assert widths == [1, 4]
    model.generate(**sources, decoder_input_ids=prefixes(7), num_beams=4, max_new_tokens=2)
    assert widths == [1, 4, 6, 1, 4]


@pytest.mark.parametrize("num_beams", [1, 2, 5])
def test_tokens_that_must_not_come_first(
    make_decided: MakeModel, sources: Source, ours: Recorder, num_beams: int
) -> None:
    """Also the most probable ones, the one that ends, and numbers of no token; with and without a prefix."""
    model = make_decided(seed=num_beams)
    most = theirs(model, sources, num_beams=1, max_new_tokens=1)[0][:, 1].unique().tolist()
    changed = 0
    searches: list[dict[str, Any]] = [{}, {"max_new_tokens": 4}, {"max_length_beyond_source": 3}]
    if num_beams > 1:
        searches += [{"num_return_sequences": num_beams, "early_stopping": "never"}, {"length_penalty": 2.5}]
    for number, options in enumerate(searches):
        given = {"decoder_input_ids": prefixes(4)} if number % 2 else {}
        plain = model.generate(**sources, **given, **options, num_beams=num_beams)
        for suppressed in (most, [*most, EOS, VOCAB + 3, -1], list(range(3, VOCAB - 13)), []):
            found = assert_the_same(
                model, ours, sources, **given, **options, begin_suppress_tokens=suppressed, num_beams=num_beams
            )
            first = found[:, given["decoder_input_ids"].shape[1] if given else 1]
            assert not set(first.tolist()) & set(suppressed)
            changed += found.shape != plain.shape or not torch.equal(found, plain)
    assert changed > len(searches)


def test_scores_count_what_tokens_that_must_not_come_first_would_have_had(
    make_decided: MakeModel, sources: Source
) -> None:
    model, options = make_decided(), {"begin_suppress_tokens": list(range(3, 30)), "length_penalty": 0.0}
    found = model.generate(**sources, **options, num_beams=1, max_new_tokens=1, return_sequence_scores=True)
    start = torch.full((SENTENCES, 1), BOS)
    log_probs = model(**sources, decoder_input_ids=start).logits[:, -1].log_softmax(-1)
    expected = log_probs.gather(1, found.sequences[:, 1:])[:, 0]
    torch.testing.assert_close(found.sequences_scores.double(), expected, rtol=1e-5, atol=1e-5)


def test_too_few_tokens_that_may_come_first_are_left_to_transformers(
    make_decided: MakeModel, sources: Source, ours: Recorder
) -> None:
    model = make_decided()
    few: list[dict[str, Any]] = [{"begin_suppress_tokens": list(range(9, VOCAB)), "num_beams": 5}]
    few.append({"begin_suppress_tokens": list(range(12, VOCAB)), "num_beams": 6, "min_new_tokens": 2})  # nor <eos>
    for options in few:
        assert torch.equal(model.generate(**sources, **options), theirs(model, sources, **options)[0])
    forced = {"begin_suppress_tokens": [7], "forced_bos_token_id": 7}
    assert torch.equal(model.generate(**sources, **forced), theirs(model, sources, **forced)[0])
    assert ours.times == 0


def test_how_long_a_target_may_become_counts_new_tokens_only(
    make_decided: MakeModel, sources: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `early_stopping="never"` a longer bound finds the same targets, but later."""
    searches, usual = [], guard_vanilla.Search
    monkeypatch.setattr(guard_vanilla, "Search", lambda *a, **k: searches.append(usual(*a, **k)) or searches[-1])
    make_decided().generate(**sources, decoder_input_ids=prefixes(12), num_beams=2, max_length=15)
    assert searches[0].max_new_tokens == 3
    assert searches[0].limits.unique().tolist() == [3]
