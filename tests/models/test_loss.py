"""The loss and its gradients are the same whether all logits exist at once or only some of them at a time."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from hf_vanilla import VanillaForConditionalGeneration
from hf_vanilla.models import loss_vanilla
from hf_vanilla.models.kernels_vanilla import is_plain_linear
from hf_vanilla.models.loss_vanilla import distance_of_halves, logits_at_once, projected_cross_entropy

MakeModel = Callable[..., VanillaForConditionalGeneration]

IGNORED = -100


def drawn(dtype: torch.dtype = torch.float64, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    states, weight = torch.randn(23, 6).mul(scale).to(dtype), torch.randn(11, 6).to(dtype)
    labels = torch.randint(11, (23,))
    labels[[0, 7, 22]] = IGNORED
    return states.requires_grad_(), weight.requires_grad_(), labels


def from_all_logits(states: Tensor, weight: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    logits = states @ weight.T
    return nn.functional.cross_entropy(
        logits.to(torch.promote_types(logits.dtype, torch.float32)), labels, reduction="sum", label_smoothing=smoothing
    )


def with_gradients(loss: Tensor, *inputs: Tensor) -> list[Tensor]:
    return [loss.detach(), *torch.autograd.grad(3 * loss, inputs)]


@pytest.fixture(params=[11, 55, 10_000], ids=["token by token", "chunks of 5", "one chunk"])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_vanilla, "logits_at_once", lambda device: request.param)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_loss_and_gradients_are_those_of_all_logits(smoothing: float, dtype: torch.dtype, tolerance: float) -> None:
    states, weight, labels = drawn(dtype)
    found = with_gradients(projected_cross_entropy(states, weight, labels, IGNORED, smoothing), states, weight)
    expected = with_gradients(from_all_logits(states, weight, labels, smoothing), states, weight)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))


def test_gradients_are_those_of_finite_differences() -> None:
    states, weight, labels = drawn()
    assert torch.autograd.gradcheck(lambda a, b: projected_cross_entropy(a, b, labels, IGNORED, 0.1), (states, weight))


def test_bfloat16_is_as_exact_as_with_all_logits() -> None:
    states, weight, labels = drawn(torch.float32)
    exact = with_gradients(from_all_logits(states.double(), weight.double(), labels, 0.1), states, weight)
    with torch.autocast("cpu", torch.bfloat16):
        found = with_gradients(projected_cross_entropy(states, weight, labels, IGNORED, 0.1), states, weight)
        usual = with_gradients(from_all_logits(states, weight, labels, 0.1), states, weight)
    for a, b, truth in zip(found, usual, exact, strict=True):
        assert a.dtype == torch.float32
        assert (a - truth).norm() <= 1.5 * (b - truth).norm() + 1e-3 * truth.norm()


def test_what_all_logits_have_in_common_costs_bfloat16_no_digits() -> None:
    states, weight, labels = (part.detach() for part in drawn(torch.float32))
    states, weight = (states + 5).requires_grad_(), (weight + 20).requires_grad_()  # logits of about 600
    exact = with_gradients(from_all_logits(states.double(), weight.double(), labels, 0.1), states, weight)
    with torch.autocast("cpu", torch.bfloat16):
        found = with_gradients(projected_cross_entropy(states, weight, labels, IGNORED, 0.1), states, weight)
    for a, truth in zip(found, exact, strict=True):
        assert (a - truth).norm() < 0.03 * truth.norm()


def test_extreme_logits_stay_finite() -> None:
    states, weight, labels = drawn(torch.float32, scale=1e4)
    loss, *gradients = with_gradients(projected_cross_entropy(states, weight, labels, IGNORED, 0.1), states, weight)
    torch.testing.assert_close(loss, from_all_logits(states, weight, labels, 0.1).detach())
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_nothing_but_ignored_labels_costs_and_teaches_nothing() -> None:
    states, weight, labels = drawn()
    labels = torch.full_like(labels, IGNORED)
    for found in with_gradients(projected_cross_entropy(states, weight, labels, IGNORED, 0.1), states, weight):
        assert not found.any()


def test_second_derivatives_are_refused_instead_of_being_zero() -> None:
    states, weight, labels = drawn()
    loss = projected_cross_entropy(states, weight, labels, IGNORED, 0.1)
    with pytest.raises(NotImplementedError, match=r"skip_logits=True has no second derivatives.*skip_logits=False"):
        torch.autograd.grad(loss, states, create_graph=True)


def drawn_twice(dtype: torch.dtype = torch.float64, tokens: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """States of the same tokens with two kinds of noise, as dropout makes them."""
    torch.manual_seed(0)
    states, weight, labels = torch.randn(tokens, 6), torch.randn(11, 6), torch.randint(11, (tokens,))
    labels[[0, 7]] = IGNORED
    states = torch.cat((states + 0.4 * torch.randn(tokens, 6), states + 0.4 * torch.randn(tokens, 6)))
    return states.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), torch.cat((labels, labels))


def r_drop_by_pytorch(states: Tensor, weight: Tensor, labels: Tensor, smoothing: float, r_drop: float) -> Tensor:
    """With PyTorch's own divergence, token by token that counts."""
    first, second = (half[labels.chunk(2)[0] != IGNORED] for half in (states @ weight.T).log_softmax(-1).chunk(2))
    divergence = nn.KLDivLoss(reduction="sum", log_target=True)
    distance = (divergence(first, second) + divergence(second, first)) / 2
    return from_all_logits(states, weight, labels, smoothing) + r_drop * distance


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("r_drop", [0.5, 5.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_r_drop_and_its_gradients_are_pytorchs(r_drop: float, dtype: torch.dtype, tolerance: float) -> None:
    states, weight, labels = drawn_twice(dtype)
    expected = with_gradients(r_drop_by_pytorch(states, weight, labels, 0.1, r_drop), states, weight)
    short = projected_cross_entropy(states, weight, labels, IGNORED, 0.1, r_drop)
    logits = states @ weight.T
    plain = from_all_logits(states, weight, labels, 0.1) + r_drop * distance_of_halves(logits, labels.ne(IGNORED))
    for found in (with_gradients(short, states, weight), with_gradients(plain, states, weight)):
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance * float(b.abs().max()))


def test_r_drop_in_bfloat16_is_as_exact_as_with_all_logits() -> None:
    states, weight, labels = drawn_twice(torch.float32, tokens=200)
    exact = with_gradients(r_drop_by_pytorch(states.double(), weight.double(), labels, 0.1, 5), states, weight)
    with torch.autocast("cpu", torch.bfloat16):
        found = with_gradients(projected_cross_entropy(states, weight, labels, IGNORED, 0.1, 5), states, weight)
        usual = with_gradients(r_drop_by_pytorch(states, weight, labels, 0.1, 5), states, weight)
    for a, b, truth in zip(found, usual, exact, strict=True):
        assert (a - truth).norm() <= 1.5 * (b - truth).norm() + 1e-3 * truth.norm()


def test_without_any_difference_r_drop_costs_nothing() -> None:
    states, weight, labels = drawn()
    twice = torch.cat((states, states)).detach().requires_grad_()
    once = with_gradients(projected_cross_entropy(states, weight, labels, IGNORED, 0.1), states, weight)
    found = with_gradients(
        projected_cross_entropy(twice, weight, torch.cat((labels, labels)), IGNORED, 0.1, 5.0), twice, weight
    )
    torch.testing.assert_close(found, [2 * once[0], torch.cat((once[1], once[1])), 2 * once[2]])


class LargestTensor(TorchDispatchMode):
    """Sees what every operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def test_no_more_than_a_chunk_of_logits_ever_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_vanilla, "logits_at_once", lambda device: 20_000)
    states, weight = torch.randn(900, 8, requires_grad=True), torch.randn(1_000, 8, requires_grad=True)
    labels = torch.randint(1_000, (900,))
    for r_drop in (0.0, 5.0):
        with LargestTensor() as largest:
            projected_cross_entropy(states, weight, labels, IGNORED, 0.1, r_drop).backward()
        assert largest.elements == 20_000
    with LargestTensor() as largest:
        from_all_logits(states, weight, labels, 0.1).backward()
    assert largest.elements == 900_000


def test_the_device_of_the_states_decides_how_many_logits_exist_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert logits_at_once(torch.device("cuda", 1)) >= 10 * logits_at_once(torch.device("cpu"))
    asked: list[torch.device] = []
    monkeypatch.setattr(loss_vanilla, "logits_at_once", lambda device: asked.append(device) or 20)
    states, weight, labels = drawn()
    projected_cross_entropy(states, weight, labels, IGNORED)
    assert asked == [states.device]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_a_model_that_skips_logits_has_the_same_loss(
    make_model: MakeModel, ragged: dict[str, Tensor], training: bool, tied: bool
) -> None:
    model = make_model(dropout=0.0, tie_word_embeddings=tied).train(training)
    parameters = list(model.parameters())
    for items in (None, 17):
        usual = model(**ragged, num_items_in_batch=items)
        short = model(**ragged, num_items_in_batch=items, skip_logits=True)
        assert short.logits is None
        torch.testing.assert_close(short.loss, usual.loss)
        found, expected = (torch.autograd.grad(outputs.loss, parameters) for outputs in (short, usual))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(model(**ragged, skip_logits=True).loss, model(**ragged).loss)


def test_a_model_that_skips_logits_has_the_same_r_drop(make_model: MakeModel, ragged: dict[str, Tensor]) -> None:
    model = make_model(dropout=0.3).train()
    parameters, twice = list(model.parameters()), {name: torch.cat((part, part)) for name, part in ragged.items()}
    found = []
    for skip_logits in (True, False):
        torch.manual_seed(1)
        loss = model(**twice, skip_logits=skip_logits, r_drop=5.0, num_items_in_batch=17).loss
        found.append((loss.detach(), *torch.autograd.grad(loss, parameters)))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


def test_without_labels_there_are_logits_all_the_same(make_model: MakeModel, ragged: dict[str, Tensor]) -> None:
    model = make_model().eval()
    assert torch.equal(model(**ragged, skip_logits=False).logits, model(**ragged).logits)
    source = {name: ragged[name] for name in ("input_ids", "attention_mask")}
    target = {"decoder_input_ids": ragged["input_ids"]}
    assert model(**source, **target, skip_logits=True).logits is not None


def with_bias(head: nn.Linear) -> nn.Module:
    head.bias = nn.Parameter(torch.randn(head.out_features))
    return head


def wrapped(head: nn.Linear) -> nn.Module:
    return nn.Sequential(head, nn.Softsign())


class Sharpened(nn.Linear):
    """A subclass, as adapters have it."""

    def forward(self, states: Tensor) -> Tensor:
        return 2 * super().forward(states)


def of_another_class(head: nn.Linear) -> nn.Module:
    other = Sharpened(head.in_features, head.out_features, bias=False)
    other.weight = head.weight
    return other


class HalfStored(Tensor):
    """A weight whose numbers are not what it multiplies with, as quantised ones have it."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is nn.functional.linear:
            return 2 * function(args[0], args[1].as_subclass(Tensor), *args[2:])
        return super().__torch_function__(function, types, args, kwargs or {})


def with_another_weight(head: nn.Linear) -> nn.Module:
    head.weight = nn.Parameter(head.weight.detach().as_subclass(HalfStored))
    return head


def with_another_forward(head: nn.Linear) -> nn.Module:
    forward = head.forward
    head.forward = lambda states: 2 * forward(states)
    return head


def hooked(register: str, hook: Callable[..., Any]) -> Callable[[nn.Linear], nn.Module]:
    def change(head: nn.Linear) -> nn.Module:
        getattr(head, register)(hook)
        return head

    return change


HEADS = {
    "bias": with_bias,
    "wrapped": wrapped,
    "subclass": of_another_class,
    "tensor subclass": with_another_weight,
    "replaced forward": with_another_forward,
    "forward hook": hooked("register_forward_hook", lambda head, inputs, logits: 2 * logits),
    "pre-hook": hooked("register_forward_pre_hook", lambda head, inputs: (2 * inputs[0],)),
    "backward hook": hooked("register_full_backward_hook", lambda head, inputs, outputs: (2 * inputs[0],)),
    "backward pre-hook": hooked("register_full_backward_pre_hook", lambda head, outputs: (2 * outputs[0],)),
}


@pytest.mark.parametrize("change", HEADS.values(), ids=HEADS.keys())
def test_a_head_that_does_more_than_multiply_is_called_whether_logits_are_skipped_or_not(
    make_model: MakeModel, ragged: dict[str, Tensor], change: Callable[[nn.Linear], nn.Module]
) -> None:
    model = make_model(tie_word_embeddings=False)
    plain = model(**ragged, skip_logits=True).loss
    first = model.model.encoder.embed_tokens.weight
    plain_gradient = torch.autograd.grad(plain, first)[0]
    model.lm_head = change(model.lm_head)
    usual, short = model(**ragged), model(**ragged, skip_logits=True)
    assert short.logits is None
    assert torch.equal(short.loss, usual.loss)
    found, expected = (torch.autograd.grad(outputs.loss, first)[0] for outputs in (short, usual))
    assert torch.equal(found, expected)
    assert not torch.allclose(expected, plain_gradient)  # the change does something


@pytest.mark.parametrize(("change", "expected"), [(lambda head: head, 1), (with_bias, 0), (with_another_forward, 0)])
def test_compiled_models_know_a_plain_head_too(change: Callable[[nn.Linear], nn.Module], expected: int) -> None:
    torch._dynamo.reset()
    head = change(nn.Linear(6, 11, bias=False))
    compiled = torch.compile(
        lambda states: states + (is_plain_linear(head) and head.bias is None), fullgraph=True, backend="eager"
    )
    assert compiled(torch.zeros(1)) == expected
