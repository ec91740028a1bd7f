"""A model without heads is the model that one gets by leaving out what they add; afterwards it is as it was."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.inspection import without_heads
from hf_vanilla.inspection.masking import Head, heads_of, scaled_heads
from hf_vanilla.inspection.reading import attentions_of
from hf_vanilla.models import guard_vanilla

MakeModel = Callable[..., Model]
Batch = dict[str, Tensor]

CASES = [
    [("encoder", 1, 2)],
    [("decoder", 0, 3)],
    [("cross", 2, 0)],
    [("encoder", 0, 0), ("decoder", 2, 1), ("cross", 1, 3), ("cross", 1, 0)],
    [("cross", 0, head) for head in range(4)],
]


@pytest.fixture
def model(make_model: MakeModel) -> Model:
    return make_model(d_v=3)  # so that columns of W^O are not those of a query


def heads_added_one_by_one(attention: nn.Module, left_out: set[int]) -> Callable[..., Tensor]:
    """MultiHead(Q, K, V) = b + sum_h Attention_h(Q, K, V) W^O_h, computed head by head."""

    def forward(heads: Tensor) -> Tensor:
        size = attention.value_size
        total = attention.o_proj.bias.expand(*heads.shape[:-1], -1)
        for head in set(range(attention.num_heads)) - left_out:
            columns = slice(head * size, (head + 1) * size)
            total = total + heads[..., columns] @ attention.o_proj.weight[:, columns].T
        return total

    return forward


@contextmanager
def by_hand(model: Model, heads: list[tuple[str, int, int]]) -> Iterator[None]:
    """The other implementation: the weights stay, and sums are made without the heads. transformers' search runs."""
    attentions = attentions_of(model)
    for place, attention in attentions.items():
        left_out = {head for kind, layer, head in heads if (kind, layer) == place}
        attention.o_proj.forward = heads_added_one_by_one(attention, left_out)
    try:
        yield
    finally:
        for attention in attentions.values():
            del attention.o_proj.forward


@pytest.mark.parametrize("heads", CASES)
def test_logits_loss_and_beam_targets_are_those_of_a_recomputation_by_hand(
    heads: list[tuple[str, int, int]], model: Model, ragged: Batch
) -> None:
    def computed() -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            outputs = model(**ragged)
        source = {name: ragged[name] for name in ("input_ids", "attention_mask")}
        return outputs.logits, outputs.loss, model.generate(**source, num_beams=3, max_length=12)

    whole = computed()
    with without_heads(model, heads):
        found = computed()
    with by_hand(model, heads):
        expected = computed()
    torch.testing.assert_close(found[0], expected[0], atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(found[1], expected[1], atol=1e-6, rtol=1e-6)
    assert torch.equal(found[2], expected[2])
    assert (found[0] - whole[0]).abs().max() > 1e-3
    again = computed()
    assert all(torch.equal(one, other) for one, other in zip(again, whole, strict=True))


def test_the_fast_search_runs_inside_and_outside(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    search = guard_vanilla.our_search
    monkeypatch.setattr(guard_vanilla, "our_search", lambda *a, **k: taken.append(1) or search(*a, **k))
    sources = torch.tensor([[5, 6, 9, 7, 2]])
    before = model.generate(sources, num_beams=2, max_length=9)
    with without_heads(model, [("cross", layer, head) for layer in range(3) for head in range(4)]):
        inside = model.generate(sources, num_beams=2, max_length=9)
    after = model.generate(sources, num_beams=2, max_length=9)
    assert len(taken) == 3
    assert torch.equal(before, after)
    assert not torch.equal(before, inside)


@pytest.mark.parametrize("kind", ["decoder", "cross"])
def test_without_a_head_nothing_below_its_layer_changes(kind: str, model: Model, ragged: Batch) -> None:
    def states() -> tuple[Tensor, ...]:
        with torch.no_grad():
            outputs = model(**ragged, output_hidden_states=True)
        return (*outputs.encoder_hidden_states, *outputs.decoder_hidden_states)

    whole = states()
    with without_heads(model, [(kind, 1, 2)]):
        found = states()
    below = 3 + 2  # three states of the encoder; embeddings and first layer of the decoder
    assert all(torch.equal(one, other) for one, other in zip(found[:below], whole[:below], strict=True))
    assert not any(torch.equal(one, other) for one, other in zip(found[below:], whole[below:], strict=True))


@pytest.mark.parametrize("fails", [False, True])
def test_weights_are_as_before_to_the_bit(fails: bool, model: Model) -> None:
    before = {name: weights.clone() for name, weights in model.state_dict().items()}
    heads = [*heads_of(model), *heads_of(model)[:3]]  # also heads that are named twice
    try:
        with without_heads(model, heads), without_heads(model, heads[5:9]):
            assert not torch.equal(before["model.encoder.layers.0.self_attn.o_proj.weight"], weight_of(model))
            if fails:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert fails
    assert all(torch.equal(before[name], weights) for name, weights in model.state_dict().items())
    assert all(weights.requires_grad for weights in model.parameters())


def weight_of(model: Model) -> Tensor:
    return model.model.encoder.layers[0].self_attn.o_proj.weight


def test_all_heads_are_found_also_where_the_stacks_have_different_depths(model: Model) -> None:
    heads = heads_of(model)
    assert len(heads) == len(set(heads)) == 2 * 4 + 3 * 4 + 3 * 4
    assert heads[0] == ("encoder", 0, 0)
    assert heads[-1] == Head("cross", 2, 3)
    assert str(heads[-1]) == "cross layer 3 head 4"


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (("crossing", 0, 0), "no kind of attention 'crossing': choose one of encoder, decoder, cross"),
        (("encoder", 2, 0), "layer 2 of encoder attention: the model has 2"),
        (("cross", 0, 4), "head 4 of cross layer 0: there are 4"),
        (("cross", 0, -1), "head -1 of cross"),
        (("decoder", -1, 0), "layer -1"),
    ],
)
def test_heads_that_there_are_not_are_named(head: tuple[str, int, int], message: str, model: Model) -> None:
    before = weight_of(model).clone()
    with pytest.raises(ValueError, match=message), without_heads(model, [("encoder", 0, 0), head]):
        pass
    assert torch.equal(before, weight_of(model))


def test_a_projection_that_is_not_just_a_product_is_refused(model: Model) -> None:
    class Adapted(nn.Linear):
        pass

    attention = model.model.decoder.layers[1].cross_attn
    attention.o_proj = Adapted(12, 16)
    with pytest.raises(ValueError, match=r"cross layer 1: o_proj is no plain nn\.Linear in memory \(Adapted\)"):
        without_heads(model, [("cross", 1, 0)]).__enter__()
    with without_heads(model, [("cross", 0, 0)]):
        pass


def test_a_factor_of_0_is_the_model_without_the_head_and_only_for_its_example(model: Model, ragged: Batch) -> None:
    with torch.no_grad():
        whole = model(**ragged).logits
        with without_heads(model, [("encoder", 1, 3)]):
            without = model(**ragged).logits
        with scaled_heads(model, 3) as factors:
            factors["encoder", 1][1, 3] = 0
            found = model(**ragged).logits
        again = model(**ragged).logits
    torch.testing.assert_close(found[1], without[1])
    torch.testing.assert_close(found[[0, 2]], whole[[0, 2]])
    assert torch.equal(again, whole)
    assert not any(module._forward_pre_hooks for module in model.modules())
