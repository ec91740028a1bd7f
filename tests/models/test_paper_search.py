"""The paper's search (6.1) in `generate()`: the length penalty of Wu et al., and lengths limited by the source's."""

import json
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig

from hf_vanilla import VanillaForConditionalGeneration as Model

BOS, PAD, EOS = 0, 1, 2
IDS = {"bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": BOS}
VOCAB, ROWS, SOURCE_LENGTHS = 6, 3, [7, 4, 5]
BEAMS = {"num_beams": 5, "num_return_sequences": 5, "suppress_tokens": [PAD], "max_new_tokens": 8}
KEYS = {"length_penalty_type": "gnmt", "max_length_beyond_source": 2}
ENDLESS = {"suppress_tokens": [PAD, EOS]}

Source = dict[str, Tensor]

every_search = pytest.mark.parametrize(
    "search",
    [
        {},
        {"do_sample": True, "num_return_sequences": 3},
        {"num_beams": 4},
        {"num_beams": 4, "num_return_sequences": 2},
        {"num_beams": 4, "do_sample": True},
    ],
    ids=str,
)


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def make_tiny(make_model: Callable[..., Model]) -> Callable[[], Model]:
    """A model of so few tokens that sentences end early and late, and that all of them can be listed."""
    return lambda: make_model(vocab_size=VOCAB, tie_word_embeddings=False)


@pytest.fixture
def model(make_tiny: Callable[[], Model]) -> Model:
    return make_tiny()


@pytest.fixture
def source(ragged: dict[str, Tensor]) -> Source:
    ids = ragged["input_ids"]
    return {"input_ids": ids.where(ids <= EOS, ids % 3 + 3), "attention_mask": ragged["attention_mask"]}


def padded(source: Source, how: str) -> Source:
    ids = source["input_ids"]
    if how == "left":
        ids = torch.stack([row.roll(int((row == PAD).sum())) for row in ids])
    return {"input_ids": ids} if how == "unmasked" else {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def alone(source: Source, row: int) -> Source:
    return {"input_ids": source["input_ids"][row, : SOURCE_LENGTHS[row]][None]}


def scored(model: Model, source: Source, **options: Any) -> tuple[Tensor, Tensor]:
    outputs = model.generate(**source, **options, return_dict_in_generate=True, output_scores=True)
    return outputs.sequences, outputs.sequences_scores


def lengths(sequences: Tensor) -> Tensor:
    """Numbers of tokens, <eos> included, the start token and padding left out."""
    return (sequences[:, 1:] != PAD).sum(-1)


def log_probability(model: Model, source: Source, sequences: Tensor) -> Tensor:
    """Of all tokens after the start token, in one pass without a cache."""
    tokens, times = sequences[:, 1:], len(sequences) // len(source["input_ids"])
    repeated = {name: value.repeat_interleave(times, dim=0) for name, value in source.items()}
    logits = model(**repeated, decoder_input_ids=sequences[:, :-1], use_cache=False).logits
    return (logits.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1) * (tokens != PAD)).sum(-1)


def every_sentence(length: int) -> Tensor:
    """Each sentence of at most `length` tokens once, padded."""
    tokens = torch.tensor(list(product(sorted({*range(VOCAB)} - {PAD}), repeat=length)))
    ends = (tokens == EOS).long()
    every = tokens.masked_fill(ends.cumsum(-1) > ends, PAD).unique(dim=0)
    return torch.nn.functional.pad(every, (1, 0), value=BOS)


def gnmt(length: Tensor, alpha: float) -> Tensor:
    return ((5 + length) / 6) ** alpha


PENALTIES = {"gnmt": gnmt, None: pow}


@pytest.mark.parametrize("keys", [{"length_penalty_type": "gnmt"}, {"length_penalty_type": None}, {}], ids=str)
@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.6, 1.0])
def test_scores_of_all_beams_are_log_probabilities_over_the_penalty_of_their_length(
    model: Model, source: Source, alpha: float, keys: dict[str, str | None]
) -> None:
    sequences, scores = scored(model, source, **BEAMS, **keys, length_penalty=alpha)
    length, penalty = lengths(sequences), PENALTIES[keys.get("length_penalty_type")]
    assert len(set(length.tolist())) > 1
    expected = log_probability(model, source, sequences) / penalty(length, alpha)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)
    assert (scores.view(ROWS, -1).diff() <= 0).all()


@pytest.mark.parametrize("alpha", [0.6, 1.0])
def test_a_wide_beam_finds_the_best_of_all_sentences_which_depends_on_the_penalty(
    make_tiny: Callable[[], Model], source: Source, alpha: float
) -> None:
    every = every_sentence(length=4)
    exhaustive = {"num_beams": 200, "max_new_tokens": 4, "suppress_tokens": [PAD], "early_stopping": "never"}
    best: dict[str | None, list[list[int]]] = {"gnmt": [], None: []}
    for model in [make_tiny() for _ in range(5)]:
        log_probs = [log_probability(model, alone(source, row), every) for row in range(ROWS)]
        for name, penalty in PENALTIES.items():
            expected = (torch.stack(log_probs) / penalty(lengths(every), alpha)).max(-1)
            sequences, scores = scored(model, source, **exhaustive, length_penalty=alpha, length_penalty_type=name)
            assert sequences.tolist() == every[expected.indices, : sequences.shape[1]].tolist()
            torch.testing.assert_close(scores, expected.values, atol=1e-5, rtol=0)
            best[name] += every[expected.indices].tolist()
    assert best["gnmt"] != best[None]


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_the_penalties_agree_on_beams_and_scores_if_and_only_if_alpha_is_zero(
    model: Model, source: Source, alpha: float
) -> None:
    (sequences, scores), (other_sequences, other_scores) = (
        scored(model, source, **BEAMS, length_penalty=alpha, length_penalty_type=name) for name in PENALTIES
    )
    assert (sequences.tolist() == other_sequences.tolist()) == (alpha == 0)
    assert torch.equal(scores, other_scores) == (alpha == 0)


@every_search
@pytest.mark.parametrize("how", ["right", "left", "unmasked"])
@pytest.mark.parametrize("beyond", [0, 20])  # 20 is what transformers takes if no length is given
def test_a_target_ends_where_its_own_source_allows(
    model: Model, source: Source, search: dict[str, Any], how: str, beyond: int
) -> None:
    sequences = model.generate(**padded(source, how), **search, **ENDLESS, max_length_beyond_source=beyond)
    limits = [7, 7, 7] if how == "unmasked" else SOURCE_LENGTHS  # without a mask padding is part of the source
    times = search.get("num_return_sequences", 1)
    assert lengths(sequences).tolist() == [limit + beyond for limit in limits for _ in range(times)]


@every_search
@pytest.mark.parametrize("limit", [{"max_new_tokens": 6}, {"max_length": 1 + 6}], ids=str)
def test_a_smaller_limit_of_the_batch_holds_as_well(
    model: Model, source: Source, search: dict[str, Any], limit: dict[str, int]
) -> None:
    sequences = model.generate(**source, **search, **ENDLESS, **limit, max_length_beyond_source=1)
    times = search.get("num_return_sequences", 1)
    assert lengths(sequences).tolist() == [length for length in (6, 5, 6) for _ in range(times)]


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
def test_the_limit_of_one_source_does_not_touch_the_beams_of_another(
    model: Model, source: Source, early_stopping: bool | str
) -> None:
    search = BEAMS | KEYS | {"max_new_tokens": None, "length_penalty": 1.0, "early_stopping": early_stopping}
    together, scores = scored(model, source, **search)
    assert len(set(lengths(together).tolist())) > 1
    for row in range(ROWS):
        mine = slice(5 * row, 5 * row + 5)
        single, single_scores = scored(model, alone(source, row), **search)
        assert together[mine, : single.shape[1]].tolist() == single.tolist()
        assert (together[mine, single.shape[1] :] == PAD).all()
        torch.testing.assert_close(scores[mine], single_scores, atol=1e-5, rtol=0)


@pytest.mark.parametrize("place", ["call", "config", "model", "saved model"])
def test_the_keys_work_wherever_generation_is_configured(
    model: Model, source: Source, tmp_path: Path, place: str
) -> None:
    options = ENDLESS | KEYS | {"num_beams": 4, "length_penalty": 0.6}
    if place.endswith("model"):
        model.generation_config = GenerationConfig(**IDS, **options)
    if place == "saved model":
        model.save_pretrained(tmp_path)
        model = Model.from_pretrained(tmp_path)
        assert json.loads((tmp_path / "generation_config.json").read_text()).items() >= KEYS.items()
    given = {"call": options, "config": {"generation_config": GenerationConfig(**options)}}.get(place, {})
    sequences, scores = scored(model, source, **given)
    assert lengths(sequences).tolist() == [length + 2 for length in SOURCE_LENGTHS]
    expected = log_probability(model, source, sequences) / gnmt(lengths(sequences), 0.6)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("given", "limits", "penalty"),
    [
        ({"length_penalty_type": None}, [9, 6, 7], pow),
        ({"max_length_beyond_source": 0}, [7, 4, 5], gnmt),
        ({"max_length_beyond_source": None, "max_new_tokens": 3}, [3, 3, 3], gnmt),
        ({"generation_config": GenerationConfig(max_length_beyond_source=0)}, [7, 4, 5], gnmt),
    ],
)
def test_a_key_of_the_call_goes_before_the_models(
    model: Model, source: Source, given: dict[str, Any], limits: list[int], penalty: Callable[[Tensor, float], Tensor]
) -> None:
    model.generation_config = GenerationConfig(**IDS, **ENDLESS, **KEYS, num_beams=4, length_penalty=0.6)
    sequences, scores = scored(model, source, **given)
    assert lengths(sequences).tolist() == limits
    expected = log_probability(model, source, sequences) / penalty(lengths(sequences), 0.6)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)


def test_a_plain_generation_config_means_what_it_means_elsewhere_and_stays_as_it_is(
    model: Model, source: Source
) -> None:
    plain = GenerationConfig(**BEAMS, length_penalty=0.6)
    before = plain.to_dict()
    sequences, scores = scored(model, source, generation_config=plain)
    assert plain.to_dict() == before
    assert not KEYS.keys() & before.keys()
    expected = log_probability(model, source, sequences) / lengths(sequences) ** 0.6
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)


def test_only_without_any_limit_does_transformers_warn_of_its_default_length(model: Model, source: Source) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate(**source, max_length_beyond_source=2)
    with pytest.warns(UserWarning, match="model-agnostic default `max_length`"):
        model.generate(**source)


@pytest.mark.parametrize(
    ("key", "value"), [("length_penalty_type", "GNMT"), ("length_penalty_type", ""), ("max_length_beyond_source", -1)]
)
def test_a_wrong_value_is_refused_by_key_and_value(model: Model, source: Source, key: str, value: object) -> None:
    for given in ({key: value}, {"generation_config": GenerationConfig(**{key: value})}):
        with pytest.raises(ValueError, match=rf"{key} \({value!r}\) must"):
            model.generate(**source, **given)


def test_keys_set_on_a_fresh_model_survive_saving(model: Model, tmp_path: Path) -> None:
    for key, value in KEYS.items():
        setattr(model.generation_config, key, value)
    model.save_pretrained(tmp_path)
    loaded = Model.from_pretrained(tmp_path).generation_config
    assert {key: getattr(loaded, key) for key in KEYS} == KEYS


def test_the_limit_ends_where_learned_positions_do(make_model: Callable[..., Model], source: Source) -> None:
    model = make_model(vocab_size=VOCAB, position_embedding_type="learned", max_position_embeddings=12)
    found = model.generate(**source, **ENDLESS, max_length_beyond_source=50)
    assert found.shape == (ROWS, 12)


@pytest.mark.parametrize("guessing", [{}, {"prompt_lookup_num_tokens": 5}], ids=str)
def test_guessing_ahead_does_not_pass_the_limit(model: Model, source: Source, guessing: dict[str, int]) -> None:
    for row, length in enumerate(SOURCE_LENGTHS):
        for one in (alone(source, row), {name: value[row : row + 1] for name, value in source.items()}):
            found = model.generate(**one, **ENDLESS, **guessing, max_new_tokens=60, max_length_beyond_source=2)
            assert found.shape == (1, 1 + length + 2)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_padding_of_a_prefix_does_not_count_towards_the_limit(model: Model, source: Source, num_beams: int) -> None:
    prefixes = torch.tensor([[BOS, 3, 4, 5], [PAD, PAD, BOS, 4], [PAD, BOS, 5, 3]])
    given = {"decoder_input_ids": prefixes, "decoder_attention_mask": (prefixes != PAD).long()}
    found = model.generate(**source, **given, **ENDLESS, num_beams=num_beams, max_length_beyond_source=2)
    tokens = [row[row != PAD].tolist() for row in found]
    assert [len(row) for row in tokens] == [1 + length + 2 for length in SOURCE_LENGTHS]
