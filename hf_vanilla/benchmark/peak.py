"""How fast this machine multiplies matrices, and how many such operations a training step takes."""

import time
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import PreTrainedModel

from ..models.configuration_vanilla import VanillaConfig
from ..models.loss_vanilla import logits_at_once
from ..private_names import require_private_names

require_private_names(__name__)

TRIALS = 5


def operations_per_token(model: PreTrainedModel, batches: Iterable[Mapping[str, Tensor]]) -> float:
    """
    Additions and multiplications in the matrix products of training steps, for each of their target tokens.

    Operations on padding count as operations, padding does not count as tokens.
    """
    operations = tokens = 0
    for batch in batches:
        with counted_operations() as counter:
            model(**batch, skip_logits=True).loss.backward()
        model.zero_grad()
        operations += counter.get_total_flops()
        tokens += int((batch["labels"] != -100).sum())
    return operations / tokens


def counted_operations() -> FlopCounterMode:
    """PyTorch's counter, with formulas for its attention on CPUs, which it would count as 0 operations."""
    aten = torch.ops.aten
    formulas = {
        aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda gradient, q, k, v, *_, **__: sdpa_backward_flop_count(gradient, q, k, v)
        ),
    }
    return FlopCounterMode(display=False, custom_mapping=formulas)


def peak_of_products(config: VanillaConfig, rows: int, dtype: torch.dtype) -> float:
    """Additions and multiplications per second on the CPU, in products of the sizes that the model's layers have."""
    width, inner, vocabulary = config.d_model, config.d_ff, config.vocab_size
    shapes = [(rows, width, width), (rows, width, inner), (rows, inner, width)]
    shapes.append((max(1, min(rows, logits_at_once(torch.device("cpu")) // vocabulary)), width, vocabulary))
    seconds = sum(_seconds_of_product(*shape, dtype=dtype) for shape in shapes)
    return sum(2 * a * b * c for a, b, c in shapes) / seconds


def _seconds_of_product(rows: int, inner: int, columns: int, dtype: torch.dtype) -> float:
    """The shortest of some trials. The result goes into memory that was allocated before."""
    left, right = torch.randn(rows, inner).to(dtype), torch.randn(columns, inner).to(dtype)
    product = torch.empty(rows, columns, dtype=dtype)
    seconds = []
    for _ in range(TRIALS):
        started = time.perf_counter()
        torch.mm(left, right.T, out=product)
        seconds.append(time.perf_counter() - started)
    return min(seconds)
