"""
Output projection and cross-entropy against smoothed targets (5.4) in one, a chunk of tokens at a time.

The logits of a whole batch, tokens x vocabulary, are by far the largest tensors of a training step, and would exist
several times over: as logits, as probabilities and as gradients of both. Here only a chunk of them ever exists, and
its gradient is taken at once.
"""

from typing import Any

import torch
from torch import Tensor

LOGITS_IN_A_CHUNK = 5_000_000


def projected_cross_entropy(
    states: Tensor, weight: Tensor, labels: Tensor, ignored: int, label_smoothing: float = 0.0
) -> Tensor:
    """
    The sum over all labels of the cross-entropy of softmax(states weight^T).

    Equal, but for rounding, to `cross_entropy(states @ weight.T, labels, reduction="sum")`. The product is taken in
    autocast's type where there is autocast.

    Args:
        states: (L, D), the decoder's last states.
        weight: (N, D), the output embedding.
        labels: (L,), the token that is right.
        ignored: The label of a position that does not count.
        label_smoothing: How much of the target is spread over all tokens.
    """
    device = states.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    options = ignored, label_smoothing, dtype, torch.is_grad_enabled()
    loss: Tensor = _ProjectedCrossEntropy.apply(states, weight, labels, *options)
    return loss


class _ProjectedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, labels: Tensor, *options: Any) -> Tensor:
        ctx.dtypes = states.dtype, weight.dtype
        # Compilers take it as one operation: they would unroll the loop over chunks, anew for every number of tokens.
        compute = chunk_by_chunk if torch.compiler.is_compiling() else _chunk_by_chunk
        loss, states_gradient, weight_gradient = compute(states, weight, labels, *options)
        ctx.save_for_backward(states_gradient, weight_gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        states_gradient, weight_gradient = (saved * gradients[0] for saved in ctx.saved_tensors)
        states_dtype, weight_dtype = ctx.dtypes
        return states_gradient.to(states_dtype), weight_gradient.to(weight_dtype), None, None, None, None, None


def _chunk_by_chunk(
    states: Tensor,
    weight: Tensor,
    labels: Tensor,
    ignored: int,
    label_smoothing: float,
    dtype: torch.dtype,
    needs_gradients: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """
    The loss, and its gradients for states and weight if they are needed.

    With logits z of a token whose label is y and eps spread over N tokens, the loss of the token is

        log sum_j exp(z_j) - (1 - eps) z_y - eps / N sum_j z_j

    and its gradient softmax(z) - (1 - eps) [j = y] - eps / N.

    Neither changes if the same is added to all z: training lets them drift by hundreds, where bfloat16 has no digits
    left for what sets them apart. So logits are taken from the weight less its mean. Their sum is 0, and with it the
    last term of the loss; that of the gradient is linear in the states, and taken once for all.
    """
    exact = torch.promote_types(dtype, torch.float32)
    counts = labels.ne(ignored)[:, None]
    targets = labels.clamp(min=0)[:, None]
    states, weight = states.to(dtype) * counts, (weight - weight.mean(0)).to(dtype)
    states_gradient = torch.empty_like(states)
    weight_gradient = torch.zeros_like(weight, dtype=exact)
    size = max(1, LOGITS_IN_A_CHUNK // len(weight))
    with torch.autocast(states.device.type, enabled=False):
        loss = states.new_zeros((), dtype=exact)
        for start in range(0, len(states), size):
            chunk = slice(start, start + size)
            logits = states[chunk] @ weight.T
            probabilities = logits.softmax(-1)
            # The largest probability is exp(largest logit) / sum, and never too small for its logarithm.
            log_sum = logits.amax(-1, True).to(exact) - probabilities.amax(-1, True).to(exact).log()
            right = logits.gather(-1, targets[chunk]).to(exact)
            loss += ((log_sum - (1 - label_smoothing) * right) * counts[chunk]).sum()
            if needs_gradients:
                right_gradient = torch.full_like(right, label_smoothing - 1, dtype=dtype)
                gradient = probabilities.scatter_add_(-1, targets[chunk], right_gradient)
                torch.mm(gradient, weight, out=states_gradient[chunk])
                weight_gradient += gradient.T @ states[chunk]
    weight_gradient -= label_smoothing / len(weight) * states.sum(0, dtype=exact)
    return loss, states_gradient * counts, weight_gradient


# Named after the module, of which there may be two: the installed one, and a copy that came with a model from the Hub.
chunk_by_chunk = torch.library.custom_op(
    f"{__name__.replace('.', '_')}::chunk_by_chunk", _chunk_by_chunk, mutates_args=()
)


@chunk_by_chunk.register_fake
def _shapes_and_types(
    states: Tensor,
    weight: Tensor,
    labels: Tensor,
    ignored: int,
    label_smoothing: float,
    dtype: torch.dtype,
    needs_gradients: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    exact = torch.promote_types(dtype, torch.float32)
    return (
        states.new_empty((), dtype=exact),
        torch.empty_like(states, dtype=dtype),
        torch.empty_like(weight, dtype=exact),
    )


__all__ = ["projected_cross_entropy"]
