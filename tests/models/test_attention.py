"""Every attention backend computes the same, no attention looks where it must not, and maps are what they seem."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration

MakeConfig = Callable[..., VanillaConfig]
MakeModel = Callable[..., VanillaForConditionalGeneration]
BOTH = (True, False)


def with_backend(model: VanillaForConditionalGeneration, backend: str) -> VanillaForConditionalGeneration:
    other = VanillaForConditionalGeneration._from_config(model.config, attn_implementation=backend).eval()
    other.load_state_dict(model.state_dict())
    assert other.config._attn_implementation == backend
    return other


@pytest.fixture(autouse=True)
def _without_compiler(request: pytest.FixtureRequest) -> Iterator[None]:
    """To compile flex_attention takes half a minute: one test does, the others have PyTorch's uncompiled one."""
    with torch.compiler.set_stance("default" if request.node.get_closest_marker("compiles") else "force_eager"):
        yield


@pytest.mark.parametrize(
    ("backend", "padded", "norm_first"),
    [
        *((backend, padded, norm) for backend in ("sdpa", "flex_attention") for padded in BOTH for norm in BOTH),
        pytest.param("flex_attention", True, False, marks=pytest.mark.compiles, id="compiled flex_attention"),
    ],
)
def test_backends_agree(
    make_model: MakeModel, ragged: dict[str, Tensor], backend: str, padded: bool, norm_first: bool
) -> None:
    eager = make_model(attn_implementation="eager", norm_first=norm_first)
    inputs = ragged if padded else {"input_ids": ragged["input_ids"], "labels": ragged["labels"].clamp(min=0)}
    with torch.no_grad():  # flex_attention on the CPU has no backward
        found, expected = with_backend(eager, backend)(**inputs), eager(**inputs)
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("padded", [True, False])
def test_gradients_of_sdpa_are_those_of_eager(make_model: MakeModel, ragged: dict[str, Tensor], padded: bool) -> None:
    eager = make_model(attn_implementation="eager")
    sdpa = with_backend(eager, "sdpa")
    inputs = ragged if padded else {"input_ids": ragged["input_ids"], "labels": ragged["labels"].clamp(min=0)}
    for model in (eager, sdpa):
        model(**inputs).loss.backward()
    for (name, found), expected in zip(sdpa.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=0, atol=1e-5, msg=name)


def test_attention_maps_sum_to_one_and_give_padding_nothing(make_model: MakeModel, ragged: dict[str, Tensor]) -> None:
    model = make_model(attn_implementation="eager")
    outputs = model(**ragged, output_attentions=True)
    padding = ragged["attention_mask"] == 0
    for maps, layers, shape in (
        (outputs.encoder_attentions, 2, (3, 4, 7, 7)),
        (outputs.decoder_attentions, 3, (3, 4, 6, 6)),
        (outputs.cross_attentions, 3, (3, 4, 6, 7)),
    ):
        assert len(maps) == layers
        for weights in maps:
            assert weights.shape == shape
            torch.testing.assert_close(weights.sum(-1), torch.ones(shape[:-1]))
    for weights in outputs.encoder_attentions + outputs.cross_attentions:
        on_padding = weights.permute(0, 3, 1, 2)[padding]
        assert on_padding.numel() > 0
        assert on_padding.eq(0).all()
        assert weights.permute(0, 3, 1, 2)[~padding].gt(0).all()
    for weights in outputs.decoder_attentions:
        assert weights.triu(1).eq(0).all()


@pytest.mark.parametrize("backend", ["eager", "sdpa", "flex_attention"])
def test_only_decoder_self_attention_is_causal(make_model: MakeModel, backend: str) -> None:
    """Without padding there is no mask, and the backends ask the module itself: a wrong answer would fail silently."""
    model = make_model(attn_implementation=backend)
    causal = {name for name, module in model.named_modules() if getattr(module, "is_causal", False)}
    assert causal == {f"model.decoder.layers.{i}.self_attn" for i in range(3)}

    source, target = torch.randint(3, 41, (2, 6)), torch.randint(3, 41, (2, 6))
    changed = source.clone()
    changed[:, -1] = (changed[:, -1] - 2) % 38 + 3
    with torch.no_grad():
        before, after = (model.model(x, decoder_input_ids=target) for x in (source, changed))
    moved = (before.encoder_last_hidden_state - after.encoder_last_hidden_state).abs().amax(-1)
    assert moved.gt(1e-4).all()  # the last source token reaches the first encoder state
    moved = (before.last_hidden_state - after.last_hidden_state).abs().amax(-1)
    assert moved.gt(1e-4).all()  # and the first decoder state


@pytest.mark.parametrize("backend", ["eager", "sdpa", "flex_attention"])
@pytest.mark.parametrize("position", range(5))
def test_future_target_tokens_cannot_change_past_logits(make_model: MakeModel, backend: str, position: int) -> None:
    model = make_model(attn_implementation=backend)
    source, target = torch.randint(3, 41, (2, 6)), torch.randint(3, 41, (2, 6))
    changed = target.clone()
    changed[:, position + 1 :] = torch.randint(3, 41, changed[:, position + 1 :].shape)
    with torch.no_grad():
        before, after = (model(input_ids=source, decoder_input_ids=x).logits for x in (target, changed))
    torch.testing.assert_close(before[:, : position + 1], after[:, : position + 1], rtol=0, atol=1e-6)
    assert not torch.allclose(before[:, position + 1 :], after[:, position + 1 :], atol=1e-3)


@pytest.mark.parametrize("backend", ["eager", "sdpa", "flex_attention"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("position_embedding_type", ["sinusoidal", "learned"])
def test_source_padding_changes_nothing(
    make_model: MakeModel, backend: str, side: str, position_embedding_type: str
) -> None:
    model = make_model(attn_implementation=backend, position_embedding_type=position_embedding_type)
    source, target = torch.randint(3, 41, (2, 5)), torch.randint(3, 41, (2, 4))
    noise = torch.randint(0, 41, (2, 3))  # what stands under the padding must not matter
    nothing, everything = torch.zeros_like(noise), torch.ones_like(source)
    parts = [(noise, nothing), (source, everything)] if side == "left" else [(source, everything), (noise, nothing)]
    padded, mask = (torch.cat(halves, dim=1) for halves in zip(*parts, strict=True))
    with torch.no_grad():
        found = model(input_ids=padded, attention_mask=mask, decoder_input_ids=target).logits
        expected = model(input_ids=source, decoder_input_ids=target).logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_a_source_of_padding_alone_harms_no_other(
    make_model: MakeModel, ragged: dict[str, Tensor], backend: str
) -> None:
    model = make_model(attn_implementation=backend)
    mask = ragged["attention_mask"].clone()
    mask[1] = 0
    outputs = model(ragged["input_ids"], mask, labels=ragged["labels"])
    assert outputs.logits.isfinite().all()
    torch.testing.assert_close(outputs.logits[[0, 2]], model(**ragged).logits[[0, 2]])
    outputs.loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_hidden_states_begin_with_embeddings_and_end_with_the_output(
    make_model: MakeModel, ragged: dict[str, Tensor]
) -> None:
    model = make_model(norm_first=True)
    outputs = model.model(
        ragged["input_ids"], ragged["attention_mask"], ragged["labels"].clamp(min=0), output_hidden_states=True
    )
    assert [len(outputs.encoder_hidden_states), len(outputs.decoder_hidden_states)] == [3, 4]
    assert torch.equal(outputs.encoder_hidden_states[-1], outputs.encoder_last_hidden_state)
    assert torch.equal(outputs.decoder_hidden_states[-1], outputs.last_hidden_state)


def test_return_dict_false_returns_a_tuple(make_model: MakeModel, ragged: dict[str, Tensor]) -> None:
    model = make_model()
    loss, logits, *_ = model(**ragged, return_dict=False)
    assert torch.equal(logits, model(**ragged).logits)
    assert loss.ndim == 0


def test_flash_kernels_that_take_the_padding_of_sources_out_of_targets_are_refused(make_model: MakeModel) -> None:
    with pytest.raises(ValueError, match="does not support Flash Attention"):
        VanillaForConditionalGeneration._from_config(make_model().config, attn_implementation="flash_attention_2")
