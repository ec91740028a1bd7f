"""Faster kernels for CPUs: the same numbers as PyTorch's usual ones, and only where they pay."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from searches import Source, theirs
from torch import Tensor, nn

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.models import kernels_vanilla
from hf_vanilla.models.guard_vanilla import our_search_arguments
from hf_vanilla.models.kernels_vanilla import (
    MAX_ONE_THREAD_OPS,
    MAX_PRODUCT_KEYS,
    MIN_ONEDNN_OPS,
    MIN_ONEDNN_OPS_REORDERED,
    MIN_WEIGHTS_TO_REORDER,
    _openmp,
    fast_on_cpu,
    linear_map,
    linear_maps,
    one_thread_if_small,
)


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def times(operation: str, act: Callable[[], object]) -> int:
    with torch.profiler.profile() as profile:
        act()
    return sum(event.count for event in profile.key_averages() if event.key == operation)


products_by_onednn = partial(times, "mkldnn::_linear_pointwise")


def test_products_by_onednn_are_those_of_pytorch() -> None:
    linears = [
        nn.Linear(33, 20),
        nn.Linear(33, 7),
        nn.Linear(33, MIN_WEIGHTS_TO_REORDER // 33 + 1),
        nn.Linear(33, 20, bias=False),
    ]
    states = torch.randn(9, 33)

    def act() -> None:
        for linear in linears:
            torch.testing.assert_close(linear_map(linear, rows=MIN_ONEDNN_OPS)(states), linear(states))
        for found, linear in zip(linear_maps(linears[:2], rows=MIN_ONEDNN_OPS)(states), linears, strict=False):
            torch.testing.assert_close(found, linear(states))

    assert products_by_onednn(act) == len(linears) + 1


def test_fewer_rows_are_enough_for_many_weights_which_are_reordered() -> None:
    states, many, few = (
        torch.randn(MIN_ONEDNN_OPS // MIN_WEIGHTS_TO_REORDER - 1, 33),
        nn.Linear(33, MIN_WEIGHTS_TO_REORDER // 33 + 1),
        nn.Linear(33, MIN_WEIGHTS_TO_REORDER // 33),
    )
    assert products_by_onednn(lambda: linear_map(many, rows=len(states))(states)) == 1
    assert products_by_onednn(lambda: linear_map(few, rows=len(states))(states)) == 0
    assert (
        products_by_onednn(
            lambda: linear_map(many, rows=MIN_ONEDNN_OPS_REORDERED // MIN_WEIGHTS_TO_REORDER - 1)(states)
        )
        == 0
    )


class Distributed(Tensor):
    """A tensor that is more than its numbers, of which some, as torchao's, cannot be looked into."""

    def __getitem__(self, index: Any) -> Tensor:
        raise TypeError("has no rows")


def test_products_by_onednn_are_for_large_ones_of_float32_without_gradients() -> None:
    large, states = nn.Linear(500, 500), torch.randn(1, MIN_ONEDNN_OPS // 500 // 500, 500)
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

    with fast_on_cpu(typical_ops=MIN_ONEDNN_OPS):
        assert products_by_onednn(act) == 1
    with fast_on_cpu(typical_ops=MIN_ONEDNN_OPS - 1):
        assert products_by_onednn(act) == 0
    assert products_by_onednn(act) == 0


def test_the_same_targets_with_products_by_onednn(
    make_decided: Callable[..., Model], sources: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_decided().float()
    expected = [theirs(model, sources, num_beams=num_beams)[0] for num_beams in (1, 4)]
    monkeypatch.setattr(kernels_vanilla, "MIN_ONEDNN_OPS", 0)
    of_encoder = products_by_onednn(partial(our_search_arguments, model, None, sources, None, is_scored=False))
    assert of_encoder == 6 * model.config.encoder_layers
    for num_beams, targets in zip((1, 4), expected, strict=True):
        assert products_by_onednn(partial(model.generate, **sources, num_beams=num_beams)) > of_encoder
        assert torch.equal(model.generate(**sources, num_beams=num_beams), targets)


FUSED = "aten::_scaled_dot_product_flash_attention_for_cpu"


def test_in_the_encoder_attention_is_by_products(make_decided: Callable[..., Model], sources: Source) -> None:
    model = make_decided()
    encode = partial(model.get_encoder(), **sources)
    expected = encode().last_hidden_state
    with fast_on_cpu(typical_ops=MIN_ONEDNN_OPS):
        torch.testing.assert_close(encode().last_hidden_state, expected)
        assert times(FUSED, encode) == 0
        with torch.enable_grad():
            assert times(FUSED, encode) == model.config.encoder_layers
    with fast_on_cpu(typical_ops=MIN_ONEDNN_OPS - 1):
        assert times(FUSED, encode) == model.config.encoder_layers


@pytest.mark.parametrize("length", [1, 15, 40])
def test_attention_by_products_is_that_of_pytorch(length: int) -> None:
    query, key, value = torch.randn(3, 2, 5, 6), torch.randn(3, 2, length, 6), torch.randn(3, 2, length, 7)
    sees = torch.rand(3, 1, 5, length) < 0.6
    sees[..., 0] = True
    attend = partial(nn.functional.scaled_dot_product_attention, query, key, value, scale=0.3)
    for mask in (None, sees, sees[:, :, :1], torch.randn(3, 2, 5, length), torch.randn(3, 1, 1, length)):
        expected = attend(attn_mask=mask)
        with fast_on_cpu(typical_ops=MIN_ONEDNN_OPS):
            torch.testing.assert_close(attend(attn_mask=mask), expected)
            assert times("aten::baddbmm", partial(attend, attn_mask=mask)) == 1


def test_other_attention_is_left_to_pytorch() -> None:
    query = torch.randn(2, 2, 5, 6)
    long = torch.randn(2, 2, MAX_PRODUCT_KEYS + 1, 6)
    attend, plain = nn.functional.scaled_dot_product_attention, {"attn_mask": None, "scale": 1.0}
    with fast_on_cpu(typical_ops=MIN_ONEDNN_OPS):
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
        with one_thread_if_small(ops=MAX_ONE_THREAD_OPS + 1):
            assert torch.get_num_threads() == 2
        with one_thread_if_small(ops=MAX_ONE_THREAD_OPS):
            assert torch.get_num_threads() == 1
            assert threads_elsewhere() == 2
        with pytest.raises(ValueError, match="a mistake"), one_thread_if_small(ops=MAX_ONE_THREAD_OPS):
            raise ValueError("a mistake")
        assert torch.get_num_threads() == threads_elsewhere() == 2
    finally:
        torch.set_num_threads(number)
