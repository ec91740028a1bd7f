"""What cannot be built is refused with the value and its limit; whatever is accepted works."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import HealthCheck, given, settings
from transformers import (
    AutoConfig,
    BartConfig,
    M2M100Config,
    MarianConfig,
    MT5Config,
    PegasusConfig,
    PreTrainedConfig,
    T5Config,
)

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration

MakeConfig = Callable[..., VanillaConfig]

REFUSED = [
    ({"d_model": 500}, "d_model (500) must be divisible by num_heads (8)"),
    ({"d_model": 15, "num_heads": 3}, "d_model (15) must be even"),
    ({"d_model": 0}, "d_model (0) must be positive"),
    ({"vocab_size": -3}, "vocab_size (-3) must be positive"),
    ({"encoder_layers": 0}, "encoder_layers (0) must be positive"),
    ({"decoder_layers": -1}, "decoder_layers (-1) must be positive"),
    ({"num_heads": 0}, "num_heads (0) must be positive"),
    ({"d_ff": 0}, "d_ff (0) must be positive"),
    ({"d_kv": 0}, "d_kv (0) must be positive"),
    ({"d_v": -8}, "d_v (-8) must be positive"),
    ({"position_embedding_type": "learned", "max_position_embeddings": 0}, "max_position_embeddings (0)"),
    ({"position_embedding_type": "rotary"}, "position_embedding_type ('rotary') must be one of sinusoidal, learned"),
    ({"activation_function": "rellu"}, "activation_function ('rellu') must be one of"),
    ({"dropout": 1.0}, "dropout (1.0) must be at least 0 and less than 1"),
    ({"attention_dropout": -0.1}, "attention_dropout (-0.1)"),
    ({"activation_dropout": 1.5}, "activation_dropout (1.5)"),
    ({"label_smoothing": 1}, "label_smoothing (1)"),
    ({"dropout": float("nan")}, "dropout (nan)"),
    ({"layer_norm_eps": 0.0}, "layer_norm_eps (0.0) must be positive"),
    ({"vocab_size": 100, "pad_token_id": 100}, "pad_token_id (100) must be one of the vocabulary's ids, 0 to 99"),
    ({"eos_token_id": [2, 40_000]}, "eos_token_id (40000)"),
    ({"decoder_start_token_id": -1}, "decoder_start_token_id (-1)"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=[str(values) for values, _ in REFUSED])
def test_what_cannot_be_built_is_refused_with_value_and_limit(values: dict[str, object], message: str) -> None:
    with pytest.raises(StrictDataclassError) as refused:
        VanillaConfig(**values)
    assert message in str(refused.value)


@pytest.mark.parametrize("values", [{"d_model": "512"}, {"dropout": "0.1"}, {"norm_first": 1}, {"d_kv": 3.5}], ids=str)
def test_a_wrong_type_is_refused_with_the_name_of_its_field(values: dict[str, object]) -> None:
    with pytest.raises(StrictDataclassError, match=next(iter(values))):
        VanillaConfig(**values)


def test_heads_need_not_divide_the_model_when_their_sizes_are_given() -> None:
    config = VanillaConfig(d_model=500, d_kv=64, d_v=32)
    assert (config.head_dim, config.d_v, config.hidden_size, config.num_hidden_layers) == (64, 32, 500, 6)


def test_only_learned_positions_have_a_longest_sequence_unless_one_is_given(tmp_path: Path) -> None:
    config = VanillaConfig()
    assert not hasattr(config, "max_position_embeddings")
    assert "max_position_embeddings" not in config.to_dict()
    config.max_position_embeddings = 64
    assert config != VanillaConfig()
    assert config == VanillaConfig(max_position_embeddings=64)
    config.max_position_embeddings = None
    assert not hasattr(config, "max_position_embeddings")
    assert config == VanillaConfig(max_position_embeddings=None) == copy.deepcopy(config)
    with pytest.raises(StrictDataclassError, match="max_position_embeddings"):
        config.max_position_embeddings = "64"

    class Subclass(VanillaConfig):
        model_type = "subclass"

    assert Subclass() == Subclass()

    config.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    written = json.loads(file.read_text())
    assert "max_position_embeddings" not in written
    file.write_text(json.dumps(written | {"max_position_embeddings": None}))  # as earlier versions wrote it
    assert not hasattr(AutoConfig.from_pretrained(tmp_path), "max_position_embeddings")
    assert AutoConfig.from_pretrained(tmp_path, max_position_embeddings=64).max_position_embeddings == 64
    assert AutoConfig.from_pretrained(tmp_path, position_embedding_type="learned").max_position_embeddings == 1024


def context_length(config: PreTrainedConfig) -> float:
    """As servers derive it: the least of all limits that a configuration has."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
    return min([getattr(config, name) for name in names if hasattr(config, name)], default=float("inf"))


READS: dict[str, Callable[[PreTrainedConfig], object]] = {
    "transformers' run_translation.py": lambda config: (
        hasattr(config, "max_position_embeddings")
        and not hasattr(config, "relative_attention_max_distance")
        and config.max_position_embeddings < 1024
    ),
    "transformers' run_summarization.py": lambda config: (
        hasattr(config, "max_position_embeddings") and config.max_position_embeddings < 512
    ),
    "with a default": lambda config: max(getattr(config, "max_position_embeddings", 2048), 0),
    "the other's length": lambda config: min(512, getattr(config, "max_position_embeddings", 512)) > 0,
    "context length": lambda config: context_length(config) > 0,
    "size of a head": lambda config: config.hidden_size // config.num_attention_heads,
    "cache": lambda config: 2 * config.num_hidden_layers * config.hidden_size,
    "logits": lambda config: config.vocab_size * config.d_model,
    "padding": lambda config: 0 <= config.pad_token_id < config.vocab_size,
}
CONFIGURATIONS = [
    *(MarianConfig(), BartConfig(), T5Config(), MT5Config(), PegasusConfig(), M2M100Config()),
    *(VanillaConfig(), VanillaConfig(position_embedding_type="learned"), VanillaConfig(max_position_embeddings=None)),
]


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_other_tools_read_our_configuration_like_those_of_transformers(
    read: Callable[[PreTrainedConfig], object],
) -> None:
    assert len({type(read(config)) for config in CONFIGURATIONS}) == 1


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_no_field_is_none_that_transformers_models_answer(positions: str) -> None:
    config = VanillaConfig(position_embedding_type=positions)
    others = [config for config in CONFIGURATIONS if not isinstance(config, VanillaConfig)]
    names = {*dir(config), *config.attribute_map}
    unanswered = {name for name in names if hasattr(config, name) and getattr(config, name) is None}
    for other in others:
        answered = {name for name in unanswered if getattr(other, name, None) is not None}
        assert not answered, type(other).__name__


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_sequence_longer_than_the_learned_positions_is_refused(make_config: MakeConfig, side: str) -> None:
    config = make_config(position_embedding_type="learned", max_position_embeddings=5)
    model = VanillaForConditionalGeneration(config).eval()
    short, long = torch.randint(3, 41, (2, 5)), torch.randint(3, 41, (2, 6))
    model(input_ids=short, labels=short)
    source, target = (long, short) if side == "source" else (short, long)
    with pytest.raises(ValueError, match="a sequence of 6 tokens is longer than the 5 learned positions"):
        model(input_ids=source, labels=target)
    if side == "target":
        with pytest.raises(ValueError, match="a sequence of 6 tokens"):
            model.generate(short, max_new_tokens=9, suppress_tokens=[2])


def test_sinusoids_have_no_longest_sequence(make_config: MakeConfig) -> None:
    model = VanillaForConditionalGeneration(make_config()).eval()
    source = torch.randint(3, 41, (1, 3000))
    assert model(input_ids=source, labels=source).loss.isfinite()


@pytest.mark.parametrize("given", [{}, {"input_ids": torch.ones(1, 2).long(), "inputs_embeds": torch.ones(1, 2, 16)}])
def test_none_or_two_inputs_are_refused(make_config: MakeConfig, given: dict[str, torch.Tensor]) -> None:
    model = VanillaForConditionalGeneration(make_config())
    with pytest.raises(ValueError, match="VanillaEncoder needs either token ids or embeddings"):
        model(**given, labels=torch.ones(1, 2).long())
    with pytest.raises(ValueError, match="VanillaDecoder needs either token ids or embeddings"):
        model(input_ids=torch.ones(1, 2).long())


@st.composite
def configurations(draw: st.DrawFn) -> VanillaConfig:
    heads = draw(st.integers(1, 4))
    d_model = draw(st.integers(1, 5)) * 2
    sizes = {name: draw(st.none() | st.integers(1, 6)) for name in ("d_kv", "d_v")}
    if d_model % heads:
        sizes = {name: size or 3 for name, size in sizes.items()}
    rates = {name: draw(st.sampled_from([0, 0.1, 0.9])) for name in ("dropout", "attention_dropout", "label_smoothing")}
    return VanillaConfig(
        vocab_size=draw(st.integers(4, 30)),
        d_model=d_model,
        num_heads=heads,
        encoder_layers=draw(st.integers(1, 3)),
        decoder_layers=draw(st.integers(1, 3)),
        d_ff=draw(st.integers(1, 9)),
        activation_function=draw(st.sampled_from(["relu", "gelu", "silu"])),
        position_embedding_type=draw(st.sampled_from(["sinusoidal", "learned"])),
        norm_first=draw(st.booleans()),
        tie_word_embeddings=draw(st.booleans()),
        **sizes,
        **rates,
    )


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=configurations(), lengths=st.tuples(*[st.integers(1, 4)] * 3))
def test_every_valid_configuration_trains_saves_loads_and_generates(
    config: VanillaConfig, lengths: tuple[int, int, int], tmp_path: Path
) -> None:
    batch, source_length, target_length = lengths
    model = VanillaForConditionalGeneration(copy.deepcopy(config)).train()
    source = torch.randint(config.vocab_size, (batch, source_length))
    labels = torch.randint(config.vocab_size, (batch, target_length))
    loss = model(input_ids=source, labels=labels).loss
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())

    model.eval().save_pretrained(tmp_path)
    loaded = VanillaForConditionalGeneration.from_pretrained(tmp_path)
    for (name, found), expected in zip(loaded.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.equal(found, expected), name
    with torch.no_grad():  # close only: the order of a sum depends on where in memory the weights were put
        logits = [m(input_ids=source, labels=labels).logits for m in (loaded, model)]
    torch.testing.assert_close(*logits)
    found = loaded.generate(source, max_new_tokens=4, num_beams=2)
    assert found.shape[0] == batch
    assert 2 <= found.shape[1] <= 5


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(config=configurations())
def test_a_configuration_survives_saving(config: VanillaConfig, tmp_path: Path) -> None:
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).to_diff_dict() == config.to_diff_dict()
    assert VanillaConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
