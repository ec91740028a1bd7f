"""What is faster on a CPU computes the same: dropout by its statistics and by its gradient."""

import math
import os
import platform
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.models.kernels_vanilla import MAX_PRODUCT_KEYS, MIN_SOFTMAX_KEYS
from hf_vanilla.training import cpu
from hf_vanilla.training.cpu import QuickDropout, make_fast_on_cpu, random_mask

SHAPE = torch.Size((1000, 1000))
DRAWS = SHAPE.numel()


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.3, 0.5, 0.9])
def test_as_many_are_dropped_as_the_rate_says(rate: float) -> None:
    torch.manual_seed(1)
    mask = random_mask(SHAPE, rate)
    four_deviations = 4 * math.sqrt(rate * (1 - rate) / DRAWS)
    assert abs(float((~mask).float().mean()) - rate) < four_deviations
    by_row = (~mask).float().mean(1)
    assert float(by_row.std()) == pytest.approx(math.sqrt(rate * (1 - rate) / 1000), rel=0.12)


def test_elements_are_dropped_independently_of_each_other_and_of_the_last_time() -> None:
    torch.manual_seed(2)
    first, second = (random_mask(SHAPE, 0.3).flatten().double() for _ in range(2))
    pairs = [(first, second), *((first[lag:], first[:-lag]) for lag in (1, 2, 3, 4, 7, 8, 64, 1000))]
    for a, b in pairs:
        assert abs(float(torch.corrcoef(torch.stack((a, b)))[0, 1])) < 4 / math.sqrt(DRAWS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_gradient_has_the_mask_and_the_scale_of_the_output(dtype: torch.dtype) -> None:
    states = torch.ones(37, 11, dtype=dtype, requires_grad=True)
    dropped = QuickDropout(0.3)(states)
    dropped.backward(torch.ones_like(dropped))
    assert dropped.dtype == dtype
    assert torch.equal(states.grad, dropped)
    assert dropped.unique().tolist() == [0, torch.tensor(1 / 0.7, dtype=dtype)]


def test_the_mean_stays() -> None:
    torch.manual_seed(3)
    assert float(QuickDropout(0.3)(torch.ones(SHAPE)).mean()) == pytest.approx(1, abs=4 * math.sqrt(0.3 / 0.7 / DRAWS))


def test_the_same_seed_drops_the_same_and_the_next_call_does_not() -> None:
    dropout, states = QuickDropout(0.5), torch.ones(40, 40)
    torch.manual_seed(5)
    first, second = dropout(states), dropout(states)
    torch.manual_seed(5)
    assert torch.equal(dropout(states), first)
    assert not torch.equal(first, second)


def test_a_forward_pass_that_is_repeated_for_the_gradient_drops_the_same() -> None:
    states = torch.ones(40, 40, requires_grad=True)
    kept = checkpoint(QuickDropout(0.5), states, use_reentrant=False)
    kept.sum().backward()
    assert torch.equal(states.grad, kept)


def test_nothing_is_dropped_in_evaluation_and_at_rate_0() -> None:
    states = torch.randn(5, 5)
    assert QuickDropout(0.3).eval()(states) is states
    assert QuickDropout(0.0)(states) is states


def test_a_model_made_fast_keeps_its_rates_its_weights_and_its_function() -> None:
    config = VanillaConfig(
        vocab_size=20, d_model=8, num_heads=2, d_ff=16, encoder_layers=1, decoder_layers=1, activation_dropout=0.2
    )
    model = VanillaForConditionalGeneration(config).eval()
    rates = {name: module.p for name, module in model.named_modules() if isinstance(module, nn.Dropout)}
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    inputs = {"input_ids": torch.tensor([[5, 6, 7]]), "labels": torch.tensor([[8, 9]])}
    expected = model(**inputs).logits
    make_fast_on_cpu(model)
    quick = {name: module.p for name, module in model.named_modules() if isinstance(module, QuickDropout)}
    assert quick == rates
    assert set(rates.values()) == {0.1, 0.2}
    assert {name: bool(torch.equal(weight, weights[name])) for name, weight in model.state_dict().items()} == (
        dict.fromkeys(weights, True)
    )
    torch.testing.assert_close(model(**inputs).logits, expected)


def test_a_compiled_model_made_fast_is_one_graph_that_drops_something_else_each_time() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    def twice(states: torch.Tensor) -> torch.Tensor:
        return torch.stack([dropout(states), dropout(states)])

    dropout = QuickDropout(0.5)
    compiled = torch.compile(twice, fullgraph=True, dynamic=True, backend="aot_eager")
    for length in (40, 50, 60):
        states = torch.ones(length, 30, requires_grad=True)
        found = [compiled(states), compiled(states)]
        masks = torch.cat(found)
        assert len(masks.flatten(1).unique(dim=0)) == 4
        (gradient,) = torch.autograd.grad(masks.sum(), states)
        assert torch.equal(gradient, masks.sum(0))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_training_with_a_compiled_model_is_one_graph_for_all_shapes() -> None:
    config = VanillaConfig(vocab_size=20, d_model=8, num_heads=2, d_ff=16, encoder_layers=1, decoder_layers=1)
    model = VanillaForConditionalGeneration(config).train()
    make_fast_on_cpu(model)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True), torch.autocast("cpu", torch.bfloat16):
        for sentences, length in [(3, 7), (2, 5), (4, 9), (9, 2)]:
            ids = torch.randint(3, 20, (sentences, length))
            compiled(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, skip_logits=True).loss.backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(("keys", "keeps_weights"), [(MAX_PRODUCT_KEYS, True), (MAX_PRODUCT_KEYS + 1, False)])
def test_weights_of_attention_are_kept_for_short_sequences_only(keys: int, keeps_weights: bool) -> None:
    config = VanillaConfig(
        vocab_size=20, d_model=8, num_heads=2, d_ff=16, encoder_layers=1, decoder_layers=1, attn_implementation="eager"
    )
    model = VanillaForConditionalGeneration(config).eval()
    ids = torch.randint(3, 20, (2, keys))
    inputs = {
        "input_ids": ids,
        "attention_mask": (torch.arange(keys) < torch.tensor([[keys], [7]])).long(),
        "labels": ids,
    }
    expected = gradients(model, inputs)
    make_fast_on_cpu(model)
    sizes: set[tuple[int, ...]] = set()

    def noted(kept: torch.Tensor) -> torch.Tensor:
        sizes.add(tuple(kept.shape))
        return kept

    with torch.autograd.graph.saved_tensors_hooks(noted, lambda kept: kept):
        found = gradients(model, inputs)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)
    assert model.config._attn_implementation == cpu.ATTENTION_BY_LENGTH
    assert ((2, config.num_heads, keys, keys) in sizes) == keeps_weights


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("tokens", [1, 3, MIN_SOFTMAX_KEYS - 1, MIN_SOFTMAX_KEYS])
def test_attention_to_few_keys_has_the_weights_and_gradients_of_the_formula(tokens: int, is_padded: bool) -> None:
    config = VanillaConfig(
        vocab_size=20, d_model=8, num_heads=2, d_ff=16, encoder_layers=1, decoder_layers=1, attn_implementation="eager"
    )
    model = VanillaForConditionalGeneration(config).eval()
    inputs = {"input_ids": torch.randint(3, 20, (4, tokens)), "labels": torch.randint(3, 20, (4, tokens + 2))}
    if is_padded:
        inputs["attention_mask"] = (torch.arange(tokens) < torch.tensor([[tokens], [1], [2], [tokens]])).long()
    expected, weights = gradients(model, inputs), model(**inputs, output_attentions=True)
    make_fast_on_cpu(model)
    for name, gradient in gradients(model, inputs).items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)
    found = model(**inputs, output_attentions=True)
    for kind in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
        torch.testing.assert_close(found[kind][0], weights[kind][0])


def gradients(model: VanillaForConditionalGeneration, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(**inputs).loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


MANY_NUMBERS_OF_ROWS = """
import ctypes, torch
from hf_vanilla import VanillaConfig, VanillaForConditionalGeneration
from hf_vanilla.training.cpu import make_fast_on_cpu
from hf_vanilla_cli.shared import working

class Mallinfo2(ctypes.Structure):  # of glibc's malloc.h
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks in_use fordblks keepcost".split()]

mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Mallinfo2
sizes = dict(d_model=16, d_ff=16, num_heads=2, encoder_layers=1, decoder_layers=1)
if "WORKING":
    working().__enter__()  # as every command does
else:
    make_fast_on_cpu(VanillaForConditionalGeneration(VanillaConfig(vocab_size=50, **sizes)))
linear = torch.nn.Linear(64, 64)
before = mallinfo2().in_use
for rows in range(1000, 1200):
    with torch.autocast("cpu", torch.bfloat16):
        linear(torch.ones(rows, 64)).sum().backward()
print(mallinfo2().in_use - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the memory in use is asked of glibc")
@pytest.mark.parametrize("in_a_command", [False, True])
def test_kernels_for_many_numbers_of_rows_do_not_stay_in_memory(in_a_command: bool) -> None:
    def bytes_in_use(**environment: str) -> int:
        options = {"capture_output": True, "text": True, "check": True, "timeout": 300}
        code = MANY_NUMBERS_OF_ROWS if in_a_command else MANY_NUMBERS_OF_ROWS.replace("WORKING", "")
        command = [sys.executable, "-c", code]
        return int(subprocess.run(command, env=os.environ | environment, **options).stdout)

    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    assert bytes_in_use(**{name: "1024"}) > 1.3 * bytes_in_use()  # 1,024 is oneDNN's own
