"""Nothing asks a device for a value in the middle of a step, for which the host would have to wait."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from hf_vanilla import VanillaForConditionalGeneration as Model
from hf_vanilla.models.loss_vanilla import projected_cross_entropy

MakeModel = Callable[..., Model]
ASKING = {getattr(torch.ops.aten, name) for name in ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "item")}


class Questions(TorchDispatchMode):
    """Counts the operations whose result the host has to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += function.overloadpacket in ASKING
        return function(*args, **(kwargs or {}))


def on_meta(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """On a device that has no values: to ask for one is an error there."""
    return {name: tensor.to("meta") for name, tensor in tensors.items()}


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_training_step_asks_for_no_value(
    make_model: MakeModel, ragged: dict[str, Tensor], implementation: str
) -> None:
    model = make_model(attn_implementation=implementation).train().to("meta")
    model(**on_meta(ragged)).loss.backward()
    assert all(weight.grad is not None for weight in model.parameters())


def test_the_fused_loss_asks_for_no_value() -> None:
    states, weight = torch.randn(9, 4, requires_grad=True), torch.randn(11, 4, requires_grad=True)
    labels = torch.tensor([1, 2, -100, 4, 5, 6, -100, 8, 9])
    with Questions() as questions:
        projected_cross_entropy(states, weight, labels, -100, 0.1).backward()
        assert questions.number == 0
        labels.sum().item()
    assert questions.number == 1


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_decoding_step_asks_for_no_value(
    make_model: MakeModel, ragged: dict[str, Tensor], implementation: str
) -> None:
    model = make_model(attn_implementation=implementation).to("meta")
    source = on_meta({name: ragged[name] for name in ("input_ids", "attention_mask")})
    with torch.no_grad():
        outputs = model.get_encoder()(**source)
        cache = EncoderDecoderCache(DynamicCache(config=model.config), DynamicCache(config=model.config))
        for length in range(1, 4):
            token = torch.zeros(3, 1, dtype=torch.long, device="meta")
            mask = source["attention_mask"]
            found = model(attention_mask=mask, encoder_outputs=outputs, decoder_input_ids=token, past_key_values=cache)
            assert found.logits.shape == (3, 1, model.config.vocab_size)
            assert cache.get_seq_length() == length


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_search_asks_once_a_step_whether_it_is_over(
    make_model: MakeModel, ragged: dict[str, Tensor], num_beams: int
) -> None:
    model = make_model()
    source = {name: ragged[name] for name in ("input_ids", "attention_mask")}
    numbers = []
    for length in (10, 20):
        with Questions() as questions, torch.no_grad():
            options = {"num_beams": num_beams, "eos_token_id": model.config.vocab_size - 1}
            found = model.generate(**source, **options, max_new_tokens=length, early_stopping="never")
        numbers.append(questions.number)
        assert found.shape[1] == 1 + length
    assert numbers[1] - numbers[0] == 10
