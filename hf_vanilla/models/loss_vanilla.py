"""
The training loss (5.4) without the logits of the whole batch: output projection and cross-entropy in one function.

Logits are by far the largest tensors of a training step: one number for each token and each entry of the vocabulary,
once more as probabilities and once more as gradients. This function computes them for some tokens at a time, adds what
these contribute to the loss and to the gradients, and forgets them.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor

CPU_LOGITS = 5_000_000
ACCELERATOR_LOGITS = 100_000_000


def logits_at_once(device: torch.device, on_cpu: int = CPU_LOGITS) -> int:
    """
    How many logits to compute at a time on this device.

    CPU: 5 million were the fastest in training, fewer are in a search; many more do not fit into its caches.

    GPUs and other accelerators: 100 million, calculated and not yet measured on any. Memory: 4 bytes for each logit in
    bfloat16 (the logit and its probability), 8 in float32, so 0.4 or 0.8 GB. Time: a chunk of any size launches some
    12 kernels (about 0.06 ms of the CPU's time), and reads and writes the whole gradient of the weight (0.2 GB for
    37,000 tokens and d_model 512, about 0.1 ms). The logits of 25,000 target tokens are 10 chunks of 100 million, with
    120 launches and 1 ms for that gradient; 5 million at a time would be 185 chunks, 2,200 launches and 20 ms.
    """
    return on_cpu if device.type == "cpu" else ACCELERATOR_LOGITS


def distance_of_halves(logits: Tensor, counts: Tensor) -> Tensor:
    """
    R-Drop (Liang et al., 2021): how far apart the same tokens are predicted with different dropout.

    The sum over tokens of (KL(p || q) + KL(q || p)) / 2, where p and q are softmax of the first and of the second half.

    Args:
        logits: (2 L, N), L tokens and the same once more.
        counts: (2 L,), 0 for tokens that do not count.
    """
    first, second = logits.log_softmax(-1).chunk(2)
    distances = ((first.exp() - second.exp()) * (first - second)).sum(-1)
    return (distances * counts.chunk(2)[0]).sum() / 2


def projected_cross_entropy(
    states: Tensor, weight: Tensor, labels: Tensor, ignored: int, label_smoothing: float = 0.0, r_drop: float = 0.0
) -> Tensor:
    """
    The sum over all labels of the cross-entropy of softmax(states weight^T).

    Equal, but for rounding, to `cross_entropy(states @ weight.T, labels, reduction="sum")`, and r_drop times
    `distance_of_halves`. Under autocast, products are computed in autocast's dtype.

    Args:
        states: (L, D), the decoder's last states.
        weight: (N, D), the output embedding.
        labels: (L,), the correct tokens.
        ignored: The label of positions that do not count.
        label_smoothing: How much of the target probability is spread over all tokens.
        r_drop: If not 0, the second half of the tokens is the first once more.
    """
    device = states.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
    options = ignored, label_smoothing, r_drop, dtype, torch.is_grad_enabled()
    loss: Tensor = _ProjectedCrossEntropy.apply(states, weight, labels, *options)
    return loss


class _ProjectedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, labels: Tensor, *options: Any) -> Tensor:
        ctx.dtypes = states.dtype, weight.dtype
        # torch.compile would unroll the loop, and compile again for each number of chunks: it gets a single operator.
        compute = chunk_by_chunk if torch.compiler.is_compiling() else _chunk_by_chunk
        loss, states_gradient, weight_gradient = compute(states, weight, labels, *options)
        ctx.save_for_backward(states_gradient, weight_gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # The saved gradients are constants to autograd. `once_differentiable` would notice this only if the gradient of
        # the loss itself required a gradient. Compiled functions refuse second derivatives by themselves.
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise NotImplementedError(
                "the loss computed with skip_logits=True has no second derivatives (create_graph=True): call the model "
                "with skip_logits=False"
            )
        states_gradient, weight_gradient = (saved * gradients[0] for saved in ctx.saved_tensors)
        states_dtype, weight_dtype = ctx.dtypes
        return states_gradient.to(states_dtype), weight_gradient.to(weight_dtype), *[None] * 6


def _chunk_by_chunk(
    states: Tensor,
    weight: Tensor,
    labels: Tensor,
    ignored: int,
    label_smoothing: float,
    r_drop: float,
    dtype: torch.dtype,
    needs_gradients: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """
    The loss, and its gradients for states and weight if they are needed.

    With logits z of a token whose label is y and eps spread over N tokens, the loss of the token is

        log sum_j exp(z_j) - (1 - eps) z_y - eps / N sum_j z_j

    and its gradient for z_j is softmax(z)_j - (1 - eps) [j = y] - eps / N.

    Neither changes if one number is added to all logits of a token. In training such a common number grows to hundreds,
    and bfloat16 then has too few digits for the differences between logits. So the mean over the vocabulary is first
    subtracted from the weight: the logits of a token then sum to 0, which removes the last term of the loss. The last
    term of the gradient does not depend on the logits; it is added after the loop, for all tokens in one operation.
    """
    exact = torch.promote_types(dtype, torch.float32)
    copies = 2 if r_drop else 1
    counts = labels.ne(ignored).view(copies, -1, 1)
    targets = labels.clamp(min=0).view(copies, -1, 1)
    states, weight = states.to(dtype).view(*counts.shape[:2], -1) * counts, (weight - weight.mean(0)).to(dtype)
    states_gradient = torch.empty_like(states)
    weight_gradient = torch.zeros_like(weight, dtype=exact)
    size = max(1, logits_at_once(states.device) // (copies * len(weight)))
    with torch.autocast(states.device.type, enabled=False):
        loss = states.new_zeros((), dtype=exact)
        for start in range(0, states.shape[1], size):
            chunk = (slice(None), slice(start, start + size))
            logits = states[chunk] @ weight.T
            probabilities = logits.softmax(-1)
            # log(sum) from the largest probability, exp(largest logit) / sum: unlike the others it is never close to 0.
            log_sum = logits.amax(-1, True).to(exact) - probabilities.amax(-1, True).to(exact).log()
            right = logits.gather(-1, targets[chunk]).to(exact)
            loss += ((log_sum - (1 - label_smoothing) * right) * counts[chunk]).sum()
            if r_drop:
                distances, distance_gradient = _distances(logits, log_sum, probabilities)
                loss += r_drop / 2 * distances.sum()  # 0 for tokens that do not count, whose states are 0
            if needs_gradients:
                right_gradient = torch.full_like(right, label_smoothing - 1, dtype=dtype)
                gradient = probabilities.scatter_add_(-1, targets[chunk], right_gradient)
                if r_drop:
                    gradient.add_(distance_gradient, alpha=r_drop / 2)
                states_gradient[chunk] = gradient @ weight
                weight_gradient += gradient.flatten(0, 1).T @ states[chunk].flatten(0, 1)
    weight_gradient -= label_smoothing / len(weight) * states.sum((0, 1), dtype=exact)
    states_gradient = (states_gradient * counts).flatten(0, 1)
    return loss, states_gradient, weight_gradient


def _distances(logits: Tensor, log_sum: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """
    KL(p || q) + KL(q || p) of each token, and its gradient for the logits of which p and q are the softmax.

    The gradient of KL(p || q) is p (log p / q - KL(p || q)) for the logits of p, and q - p for those of q.

    Args:
        logits: (2, L, N), those of p and of q.
        log_sum: (2, L, 1), the logarithm of the sum of their exponentials.
        probabilities: (2, L, N), p and q.
    """
    p, q = probabilities
    ratio = logits[0] - logits[1] - (log_sum[0] - log_sum[1]).to(logits.dtype)
    of_p = (p * ratio).sum(-1, True, dtype=log_sum.dtype)
    of_q = -(q * ratio).sum(-1, True, dtype=log_sum.dtype)
    gradient = torch.empty_like(probabilities)
    torch.mul(p, ratio + (1 - of_p).to(p.dtype), out=gradient[0]).sub_(q)
    torch.mul(q, (1 - of_q).to(q.dtype) - ratio, out=gradient[1]).sub_(p)
    return of_p + of_q, gradient


# Names of operators are global, but this module may exist several times in a process: installed, and with every model
# that brings its own version of it. A digest of the module's name tells them apart. The name itself has the letters of
# the model's folder, and an operator's name may not have all of these.
NAMESPACE = f"hf_vanilla_{hashlib.sha256(__name__.encode()).hexdigest()[:16]}"
chunk_by_chunk = torch.library.custom_op(f"{NAMESPACE}::chunk_by_chunk", _chunk_by_chunk, mutates_args=())


@chunk_by_chunk.register_fake
def _shapes_and_types(
    states: Tensor,
    weight: Tensor,
    labels: Tensor,
    ignored: int,
    label_smoothing: float,
    r_drop: float,
    dtype: torch.dtype,
    needs_gradients: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    exact = torch.promote_types(dtype, torch.float32)
    return (
        states.new_empty((), dtype=exact),
        torch.empty_like(states, dtype=dtype),
        torch.empty_like(weight, dtype=exact),
    )


__all__ = ["distance_of_halves", "logits_at_once", "projected_cross_entropy"]
