"""The model is one graph: torch.compile and torch.export take it whole, once for all shapes, and compute the same."""

import shutil
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export
from torch.testing import assert_close
from transformers import CompileConfig, DynamicCache, EncoderDecoderCache, StaticCache

from hf_vanilla import VanillaForConditionalGeneration

MakeModel = Callable[..., VanillaForConditionalGeneration]
SMALL = {"encoder_layers": 1, "decoder_layers": 2}
SHAPES = [(3, 7, 6), (2, 5, 4), (4, 9, 11), (5, 4, 13), (2, 2, 2), (7, 6, 3)]  # sentences, source and target length


@pytest.fixture(autouse=True)
def _forget_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def random_source(sentences: int, length: int) -> dict[str, Tensor]:
    """Random sentences of random lengths, padded to one."""
    ids = torch.randint(3, 41, (sentences, length))
    padding = torch.arange(length) >= torch.randint(1, length + 1, (sentences, 1))
    return {"input_ids": ids.masked_fill(padding, 1), "attention_mask": (~padding).long()}


def random_batch(sentences: int, source_length: int, target_length: int) -> dict[str, Tensor]:
    """What Trainer gives to the model."""
    source, target = random_source(sentences, source_length), random_source(sentences, target_length)
    labels = target["input_ids"].masked_fill(target["attention_mask"] == 0, -100)
    return source | {"labels": labels, "num_items_in_batch": labels.ne(-100).sum()}


def loss_and_gradients(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return {"loss": loss.detach(), **dict(enumerate(gradients))}


@pytest.mark.parametrize(
    ("variant", "skip_logits"),
    [({}, False), ({"norm_first": True, "position_embedding_type": "learned"}, True)],
    ids=["paper", "pre-norm, learned positions and no logits"],
)
def test_one_compiled_graph_trains_on_every_shape_as_eager_does(
    variant: dict[str, object], make_model: MakeModel, skip_logits: bool
) -> None:
    model = make_model(dropout=0.0, encoder_layers=1, decoder_layers=1, **variant).train()
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for shape in SHAPES:
            batch = random_batch(*shape) | {"skip_logits": skip_logits}
            expected = loss_and_gradients(model, batch)
            assert_close(loss_and_gradients(compiled, batch), expected, rtol=0, atol=1e-5)
    assert graphs() == 1


@pytest.mark.skipif(not shutil.which("g++") and not shutil.which("clang++"), reason="inductor needs a C++ compiler")
def test_inductor_trains_as_eager_does(make_model: MakeModel) -> None:
    model = make_model(dropout=0.0, encoder_layers=1, decoder_layers=1).train()
    batch = random_batch(*SHAPES[0])
    expected = loss_and_gradients(model, batch)
    assert_close(loss_and_gradients(torch.compile(model, fullgraph=True), batch), expected, rtol=0, atol=1e-5)


def static_cache(model: VanillaForConditionalGeneration, source_length: int) -> EncoderDecoderCache:
    """What `generate` makes of cache_implementation="static"."""
    return EncoderDecoderCache(*(StaticCache(model.config, length) for length in (12, source_length)))


def dynamic_cache(model: VanillaForConditionalGeneration, source_length: int) -> EncoderDecoderCache:
    return EncoderDecoderCache(*(DynamicCache(config=model.config) for _ in range(2)))


@pytest.mark.parametrize(
    ("make_cache", "dynamic", "prompt"),
    [
        (static_cache, False, 1),
        # A tensor that grows has a free length from two on: from one, as `generate` starts, it takes a second graph.
        (dynamic_cache, True, 2),
    ],
)
@torch.no_grad()
def test_one_compiled_graph_decodes_every_step_as_eager_does(
    make_cache: Callable[[VanillaForConditionalGeneration, int], EncoderDecoderCache],
    dynamic: bool,
    prompt: int,
    make_model: MakeModel,
) -> None:
    model = make_model(**SMALL)
    source, target = random_source(3, 7), torch.randint(3, 41, (3, 9))
    expected = model(**source, decoder_input_ids=target).logits
    inputs = {
        "attention_mask": source["attention_mask"],
        "encoder_outputs": model.get_encoder()(**source),
        "past_key_values": make_cache(model, 7),
    }
    model(**inputs, decoder_input_ids=target[:, :prompt])
    step = torch.compile(model, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for i in range(prompt, 9):
            logits = step(**inputs, decoder_input_ids=target[:, i : i + 1]).logits
            assert_close(logits, expected[:, i : i + 1], rtol=0, atol=1e-5)
    assert graphs() == 1


def test_generate_compiles_its_step_once_and_says_the_same(make_model: MakeModel) -> None:
    model = make_model(**SMALL)
    model.generation_config.update(max_new_tokens=8, eos_token_id=None)
    compilation = CompileConfig(fullgraph=True, mode=None, backend="aot_eager")
    compilation._compile_all_devices = True  # `generate` compiles on accelerators only
    for _ in range(2):
        source = random_source(3, 7)
        expected = model.generate(**source)
        compiled = model.generate(**source, cache_implementation="static", compile_config=compilation)
        assert torch.equal(compiled, expected)
    assert graphs() == 1


@pytest.mark.parametrize("strict", [False, True])
@torch.no_grad()
def test_exported_program_gives_the_same_logits_for_every_shape(strict: bool, make_model: MakeModel) -> None:
    model = make_model(**SMALL)

    def inputs(sentences: int, source_length: int, target_length: int) -> dict[str, Tensor]:
        target = torch.randint(3, 41, (sentences, target_length))
        return random_source(sentences, source_length) | {"decoder_input_ids": target}

    free = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}  # an error if any length became a constant
    shapes = {"input_ids": free, "attention_mask": free, "decoder_input_ids": free, "use_cache": None}
    # The keys and values of a cache are not what torch.export knows to return.
    program = export(model, (), inputs(3, 7, 6) | {"use_cache": False}, dynamic_shapes=shapes, strict=strict).module()
    for shape in [*SHAPES, (1, 1, 1), (1, 30, 20)]:
        batch = inputs(*shape)
        assert_close(program(**batch, use_cache=False).logits, model(**batch).logits, rtol=0, atol=1e-5)
