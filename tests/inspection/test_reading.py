"""Attention is read as the search sees it, and the model has back all that it had."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.inspection import reading
from hf_vanilla.inspection.effect import effect_of_hiding
from hf_vanilla.inspection.reading import KINDS, Maps, attentions_of, maps_of
from hf_vanilla.inspection.weighted import added_by_heads, weighted_by_head, weighted_by_layer
from hf_vanilla.models import guard_vanilla

LENGTHS = [(7, 6), (4, 5), (5, 3), (2, 9), (11, 1)]

MakeModel = Callable[..., Model]


@pytest.fixture
def pairs() -> tuple[list[list[int]], list[list[int]]]:
    """Sources and targets of five lengths: bos 0, pad 1, eos 2."""
    draw = Random(5)  # noqa: S311 - no secret

    def ids(length: int) -> list[int]:
        return [draw.randrange(3, 41) for _ in range(length - 1)] + [2]

    return [ids(source) for source, _ in LENGTHS], [ids(target) for _, target in LENGTHS]


Pairs = tuple[list[list[int]], list[list[int]]]


# --- The numbers ----------------------------------------------------------------------------------------------------


def test_maps_have_the_shapes_of_their_pair(make_model: MakeModel, pairs: Pairs) -> None:
    for found, (source, target) in zip(maps_of(make_model(), *pairs), LENGTHS, strict=True):
        assert found.encoder.shape == (2, 4, source, source)
        assert found.decoder.shape == (3, 4, target, target)
        assert found.cross.shape == (3, 4, target, source)
        assert {found.of(kind).dtype for kind in KINDS} == {np.dtype(np.float32)}


@pytest.mark.parametrize("changes", [{}, {"norm_first": True}, {"position_embedding_type": "learned"}])
def test_rows_add_up_to_one_and_see_no_future(changes: dict[str, Any], make_model: MakeModel, pairs: Pairs) -> None:
    for found in maps_of(make_model(**changes), *pairs):
        for kind in KINDS:
            assert found.of(kind).sum(-1) == pytest.approx(1, abs=1e-5)
            assert (found.of(kind) >= 0).all()
        assert not np.triu(found.decoder, 1).any()
        assert np.diagonal(found.decoder, axis1=2, axis2=3).all()


@pytest.mark.parametrize("max_tokens", [1, 15, 10_000])
def test_a_pair_is_read_as_if_it_were_alone(max_tokens: int, make_model: MakeModel, pairs: Pairs) -> None:
    model = make_model()
    together = maps_of(model, *pairs, max_tokens=max_tokens)
    for source, target, found in zip(*pairs, together, strict=True):
        (alone,) = maps_of(model, [source], [target])
        for kind in KINDS:
            assert found.of(kind) == pytest.approx(alone.of(kind), abs=1e-6)


def test_maps_are_those_that_the_model_returns(make_model: MakeModel, pairs: Pairs) -> None:
    model = make_model(attn_implementation="eager")
    for source, target, found in zip(*pairs, maps_of(model, *pairs), strict=True):
        outputs = model(torch.tensor([source]), labels=torch.tensor([target]), output_attentions=True)
        for kind, attentions in zip(
            KINDS, (outputs.encoder_attentions, outputs.decoder_attentions, outputs.cross_attentions), strict=True
        ):
            assert found.of(kind) == pytest.approx(torch.cat(attentions).detach().numpy(), abs=1e-6)


def test_padding_gets_nothing(make_model: MakeModel, pairs: Pairs) -> None:
    """What is cut off the maps is zero in the rows of real queries: nothing is hidden by cutting."""
    model = make_model()
    modules = attentions_of(model)
    with reading.reading(model), reading.weights_of(modules) as weights:
        model.base_model(**reading.inputs_of(model, *pairs))
    for (kind, _), batch in weights.items():
        for row, (source, target) in enumerate(LENGTHS):
            queries, keys = (source if kind == "encoder" else target), (target if kind == "decoder" else source)
            assert not batch[row, :, :queries, keys:].any()


def test_kinds_that_are_not_asked_for_are_not_read(make_model: MakeModel, pairs: Pairs) -> None:
    model = make_model()
    everything = maps_of(model, *pairs)
    for found, whole in zip(maps_of(model, *pairs, kinds=["cross"]), everything, strict=True):
        assert (len(found.encoder), len(found.decoder)) == (0, 0)
        assert np.array_equal(found.cross, whole.cross)


def test_attention_of_a_hypothesis_is_that_of_its_beams(make_model: MakeModel) -> None:
    """The rows that `beam_indices` picks, where those of the first beam of each step are others."""
    model = make_model(attn_implementation="eager")
    model.generation_config.update(num_beams=4, max_new_tokens=12)
    rows = others = 0
    for seed in range(6):
        draw = Random(seed)  # noqa: S311
        source = [draw.randrange(3, 41) for _ in range(5)] + [2]
        found = model.generate(torch.tensor([source]), output_attentions=True, return_dict_in_generate=True)
        target = found.sequences[0, 1:].tolist()
        indices = found.beam_indices[0]
        target, indices = target[: (indices >= 0).sum()], indices[indices >= 0].tolist()
        (maps,) = maps_of(model, [source], [target])
        for step, beam in enumerate(indices):
            picked, first = (
                np.stack([layer[row, :, -1].numpy() for layer in found.cross_attentions[step]]) for row in (beam, 0)
            )
            assert maps.cross[:, :, step] == pytest.approx(picked, abs=1e-5)
            own = np.stack([layer[beam, :, -1].numpy() for layer in found.decoder_attentions[step]])
            assert maps.decoder[:, :, step, : step + 1] == pytest.approx(own, abs=1e-5)
            rows, others = rows + 1, others + (np.abs(first - picked).max() > 1e-3)
    assert rows > 20
    assert others > 3


def test_an_empty_text_is_refused(make_model: MakeModel) -> None:
    with pytest.raises(ValueError, match="pair 1 has an empty target"):
        maps_of(make_model(), [[5, 2], [5, 2]], [[5, 2], []])


# --- What weights add -----------------------------------------------------------------------------------------------


def test_what_heads_add_is_the_output_of_the_attention(make_model: MakeModel, pairs: Pairs) -> None:
    """Weighted by the attention and summed over heads and keys it is what the module returns, but for the bias."""
    model = make_model()
    source, target = pairs[0][0], pairs[1][0]
    (maps,), added = maps_of(model, [source], [target]), added_by_heads(model, source, target)
    outputs: dict[Any, np.ndarray] = {}
    for place, module in attentions_of(model).items():
        module.register_forward_hook(lambda module, _, out, place=place: outputs.__setitem__(place, out[0][0].detach()))
    model(torch.tensor([source]), labels=torch.tensor([target]))
    for (kind, layer), module in attentions_of(model).items():
        found = np.einsum("hqk,hkd->qd", maps.of(kind)[layer], added[kind, layer])
        assert found + module.o_proj.bias.detach().numpy() == pytest.approx(outputs[kind, layer].numpy(), abs=1e-5)


def test_weighted_attention_is_the_norm_of_what_each_weight_adds(make_model: MakeModel, pairs: Pairs) -> None:
    model = make_model()
    source, target = pairs[0][1], pairs[1][1]
    (maps,), added = maps_of(model, [source], [target]), added_by_heads(model, source, target)
    heads = weighted_by_head(maps, added)
    for kind in KINDS:
        together = weighted_by_layer(maps, added, kind)
        for layer in range(len(maps.of(kind))):
            each = maps.of(kind)[layer][..., None] * added[kind, layer][:, None]  # (H, Q, K, D)
            assert heads.of(kind)[layer] == pytest.approx(np.linalg.norm(each, axis=-1), abs=1e-5)
            assert together[layer] == pytest.approx(np.linalg.norm(each.sum(0), axis=-1), abs=1e-5)
    by_hand = weighted_by_hand(model, source, 1, 2, maps)
    assert heads.encoder[1, 2] == pytest.approx(by_hand, abs=1e-5)


def weighted_by_hand(model: Model, source: list[int], layer: int, head: int, maps: Maps) -> np.ndarray:
    """|alpha (x W_V + b_V) W_O| of a head of the encoder, from its weights alone."""
    states = model.get_encoder()(torch.tensor([source]), output_hidden_states=True).hidden_states[layer][0]
    module = model.get_encoder().layers[layer].self_attn
    size = module.value_size
    part = slice(head * size, (head + 1) * size)
    values = states @ module.v_proj.weight[part].T + module.v_proj.bias[part]
    return maps.encoder[layer, head] * (values @ module.o_proj.weight[:, part].T).norm(dim=-1).detach().numpy()


# --- What hiding changes --------------------------------------------------------------------------------------------


def test_hiding_a_word_that_is_not_read_changes_nothing(make_model: MakeModel) -> None:
    """Source tokens see only themselves, and all of the decoder's attention to the source is on the third of them."""
    model, width = make_model(), 16
    with torch.no_grad():
        for (kind, _), module in attentions_of(model, ["encoder", "cross"]).items():
            if kind == "encoder":
                module.o_proj.weight.zero_()
                module.o_proj.bias.zero_()
                continue
            module.q_proj.weight.zero_()
            module.q_proj.bias.zero_()
            module.q_proj.bias[::4] = 1e4  # every head asks for the first of its features, which one token has
            module.k_proj.weight.zero_()
            module.k_proj.bias.zero_()
        source, target = [5, 9, 30, 17, 8, 2], [12, 4, 33, 2]
        states = model.get_encoder()(torch.tensor([source])).last_hidden_state[0]
        others = torch.cat([states[:2], states[3:]])
        normal = torch.linalg.lstsq(torch.cat([others, states[2:3]]), torch.tensor([[0.0]] * 5 + [[1.0]])).solution[
            :, 0
        ]
        for module in attentions_of(model, ["cross"]).values():
            module.k_proj.weight[::4] = normal
    (maps,) = maps_of(model, [source], [target])
    assert maps.cross[..., 2] == pytest.approx(1)
    effects = effect_of_hiding(model, source, target, np.array([0, 1, 2, 3, 4, 5]))
    assert effects.shape == (4, 6)
    assert np.delete(effects, 2, axis=1) == pytest.approx(0, abs=1e-6)
    assert np.abs(effects[:, 2]).min() > 1e-2
    assert width == model.config.d_model


def test_the_effect_is_the_difference_of_two_passes(make_model: MakeModel) -> None:
    """Of the model with the tokens and without them; a source without its last word is the shorter source."""
    model = make_model()
    source, target = [5, 9, 30, 17, 8, 11], [12, 4, 33, 2]
    effects = effect_of_hiding(model, source, target, np.array([0, 0, 1, 2, 3, 3]))

    def log_probabilities(ids: list[int]) -> np.ndarray:
        logits = model(torch.tensor([ids]), labels=torch.tensor([target])).logits[0].log_softmax(-1)
        return logits[torch.arange(4), target].detach().numpy()

    assert effects[:, 3] == pytest.approx(log_probabilities(source) - log_probabilities(source[:4]), abs=1e-5)


def test_a_source_of_one_part_has_no_effect_to_measure(make_model: MakeModel) -> None:
    with pytest.raises(ValueError, match="one part"):
        effect_of_hiding(make_model(), [5, 2], [5, 2], np.array([0, 0]))


# --- The model afterwards -------------------------------------------------------------------------------------------


def state_of(model: PreTrainedModel) -> tuple[object, ...]:
    hooks = [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()]
    training = [module.training for module in model.modules()]
    return model.config._attn_implementation, hooks, training, torch.is_grad_enabled()


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "flex_attention"])
@pytest.mark.parametrize("fails", [False, True])
def test_nothing_of_the_model_is_changed_afterwards(
    implementation: str, fails: bool, make_model: MakeModel, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    model.set_attn_implementation(implementation)
    model.get_decoder().layers[1].train()
    before, weights = state_of(model), {name: weight.clone() for name, weight in model.state_dict().items()}
    source, target = pairs[0][0], pairs[1][0]
    steps: list[Callable[[], object]] = [
        lambda: maps_of(model, *pairs),
        lambda: added_by_heads(model, source, target),
        lambda: effect_of_hiding(model, source, target, np.arange(len(source))),
    ]
    for step in steps:
        with monkeypatch.context() as patch:
            if fails:
                patch.setattr(model.get_decoder().layers[-1].feed_forward, "forward", None)
                with pytest.raises(TypeError):
                    step()
            else:
                step()
        assert state_of(model) == before
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())


def test_the_fast_search_is_taken_again_afterwards(
    make_model: MakeModel, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    calls: list[object] = []
    search = guard_vanilla.beam_search

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return search(*arguments)

    monkeypatch.setattr(guard_vanilla, "beam_search", counted)
    model.generation_config.update(num_beams=3, max_new_tokens=7)
    before = model.generate(torch.tensor([pairs[0][0]]))
    maps_of(model, *pairs)
    added_by_heads(model, pairs[0][0], pairs[1][0])
    assert torch.equal(model.generate(torch.tensor([pairs[0][0]])), before)
    assert len(calls) == 2
