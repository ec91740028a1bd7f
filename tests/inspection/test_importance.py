"""How much heads are needed: gradients are those that differences give, and masking is the loss without the head."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.inspection.importance import (
    Importance,
    correlation_of_ranks,
    gradients,
    gradients_in_layers,
    importance_of_heads,
    losses,
    pruned,
    ranks_of,
)
from hf_vanilla.inspection.masking import Head, heads_of, scaled_heads, without_heads
from hf_vanilla.inspection.reading import Kind, inputs_of

MakeModel = Callable[..., Model]

SOURCES = [[5, 9, 7, 6, 8, 2], [17, 5, 2], [6, 26, 9, 8, 35, 7, 9, 2]]
TARGETS = [[8, 7, 2], [5, 16, 7, 38, 2], [9, 2]]


def losses_by_hand(model: Model) -> torch.Tensor:
    """-log p of each target token in one batch, mean of each example."""
    logits = model(**inputs_of(model, SOURCES, TARGETS)).logits.log_softmax(-1)
    each = [-logits[row, range(len(ids)), ids].mean() for row, ids in enumerate(TARGETS)]
    return torch.stack(each).detach()


def test_losses_are_those_of_each_example_without_dropout_and_smoothing(make_model: MakeModel) -> None:
    model = make_model(dropout=0.3, label_smoothing=0.2)
    assert losses(model.train(), SOURCES, TARGETS) == pytest.approx(losses_by_hand(model.eval()).numpy(), abs=1e-6)
    assert losses(model, SOURCES, TARGETS, max_tokens=3) == pytest.approx(losses(model, SOURCES, TARGETS), abs=1e-6)


def test_the_gradient_is_the_central_difference_of_the_loss(make_model: MakeModel) -> None:
    """In float64, of every head and of every example, to 1e-3 of the difference."""
    model = make_model(d_v=3).double()
    found, step = gradients(model, SOURCES, TARGETS), 1e-4
    assert found.shape == (3, len(heads_of(model)))
    for column, (kind, layer, head) in enumerate(heads_of(model)):
        each = []
        for change in (step, -step):
            with scaled_heads(model, 3) as factors, torch.no_grad():
                factors[kind, layer][:, head] += change
                each.append(losses_by_hand(model))
        difference = (each[0] - each[1]) / (2 * step)
        assert found[:, column] == pytest.approx(difference.numpy(), rel=1e-3, abs=1e-9)
    assert np.abs(found).min() > 1e-6


def test_batches_change_no_gradient(make_model: MakeModel) -> None:
    model = make_model()
    together = gradients(model, SOURCES, TARGETS)
    assert gradients(model, SOURCES, TARGETS, max_tokens=1) == pytest.approx(together, abs=1e-6)


def test_the_importance_of_a_head_is_the_mean_over_examples(make_model: MakeModel) -> None:
    model = make_model()
    found, each = importance_of_heads(model, SOURCES, TARGETS), np.abs(gradients(model, SOURCES, TARGETS))
    assert list(found) == heads_of(model)
    whole = losses_by_hand(model)
    for column, head in enumerate(found):
        with without_heads(model, [head]):
            change = (losses_by_hand(model) - whole).numpy()
        assert found[head].gradient == pytest.approx(each[:, column].mean(), rel=1e-5)
        assert found[head].masking == pytest.approx(change.mean(), abs=2e-6)
        assert found[head].absolute == pytest.approx(np.abs(change).mean(), abs=2e-6)
        assert found[head].typical_gradient == pytest.approx(sorted(each[:, column])[1], rel=1e-5)
        assert found[head].typical_change == pytest.approx(sorted(np.abs(change))[1], abs=2e-6)


def test_nothing_of_the_model_is_changed_afterwards(make_model: MakeModel) -> None:
    model = make_model().train()
    model.model.encoder.eval()
    before = {name: weights.clone() for name, weights in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    importance_of_heads(model, SOURCES, TARGETS)
    assert all(torch.equal(before[name], weights) for name, weights in model.state_dict().items())
    assert modes == [module.training for module in model.modules()]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_head_that_adds_nothing_has_no_importance(make_model: MakeModel) -> None:
    model = make_model()
    head = heads_of(model)[9]
    with without_heads(model, [head]):
        nothing = importance_of_heads(model, SOURCES, TARGETS)[head]
    assert set(vars(nothing).values()) == {0}


def test_heads_are_compared_within_their_layer() -> None:
    """With the gradients 3 and 4 a layer has the norm 5, however large those of other layers are."""
    gradients_of: dict[tuple[Kind, int], tuple[float, float]] = {
        ("encoder", 0): (3.0, 4.0),
        ("encoder", 1): (40.0, 30.0),
        ("cross", 0): (0.0, 0.5),
        ("decoder", 0): (0.0, 0.0),
    }
    importance = {
        Head(kind, layer, head): Importance(value, 0, 0, 0, 0)
        for (kind, layer), values in gradients_of.items()
        for head, value in enumerate(values)
    }
    assert list(gradients_in_layers(importance).values()) == pytest.approx([0.6, 0.8, 0.8, 0.6, 0, 1, 0, 0])


def test_pruning_goes_from_all_heads_to_none(make_model: MakeModel) -> None:
    heads = heads_of(make_model())
    off = list(pruned(heads, steps=10))
    assert [len(some) for some in off] == [0, 3, 6, 10, 13, 16, 19, 22, 26, 29, 32]
    assert all(some == heads[: len(some)] for some in off)
    assert [len(some) for some in pruned(heads[:3], steps=10)] == [0, 1, 2, 3]


def test_ranks_and_their_correlation_are_those_worked_by_hand() -> None:
    """Without ties 1 - 6 sum d^2 / (n (n^2 - 1)): d is 1, 1, 1, 1, 0."""
    assert ranks_of(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [2.5, 0, 2.5, 1]
    assert correlation_of_ranks([1, 2, 3, 4, 5], [20, 10, 40, 30, 99]) == pytest.approx(1 - 6 * 4 / (5 * 24))
    assert correlation_of_ranks([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # With ties, Pearson's of the ranks 0, 1.5, 1.5, 3 and 0, 1, 2, 3: 4.5 / sqrt(4.5 * 5).
    assert correlation_of_ranks([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
    assert math.isnan(correlation_of_ranks([1, 1, 1], [1, 2, 3]))
    assert math.isnan(correlation_of_ranks([1], [2]))
