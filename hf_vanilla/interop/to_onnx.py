"""
Two ONNX graphs for onnxruntime, or any engine that knows operator set 21: the encoder, and one step of the decoder.

- `encoder.onnx`: of token ids and their mask the last states, and the keys and values that the layers of the decoder
  look at, which are so computed once.
- `decoder.onnx`: of the next tokens, and keys and values of the source and of the tokens before, the logits, the keys
  and values with the new tokens (growing, none at the beginning), and the attention to the source.

`source_rows` is the number of sources, or 1 for a single source with any number of targets (`rows`): its keys and
values need not be repeated for each hypothesis.

Letters of shapes in names: as in modeling_vanilla.py.
"""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSeq2SeqLM, PreTrainedModel

from ..inference.onnx_engine import check_search
from ..inference.onnx_search import DECODER, ENCODER
from ..run_directory import GENERATION_CONFIG, MODEL_CONFIG, TOKENIZER, TOKENIZER_CONFIG
from .errors import InteropError
from .onnx_graph import Graph
from .usual_search import refuse_other_searches

COPIED = (TOKENIZER, TOKENIZER_CONFIG, GENERATION_CONFIG)
HIDDEN = -1e9  # added to scores of what must not be seen: its weight is then exactly 0
QUANTIZATIONS = ("float32", "int8")

ACTIVATIONS: dict[str, Callable[[Graph, str], str]] = {
    "relu": lambda graph, x: graph.op("Relu", x),
    "tanh": lambda graph, x: graph.op("Tanh", x),
    "sigmoid": lambda graph, x: graph.op("Sigmoid", x),
    **dict.fromkeys(("gelu", "gelu_python"), lambda graph, x: graph.op("Gelu", x)),
    **dict.fromkeys(
        ("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh"),
        lambda graph, x: graph.op("Gelu", x, approximate="tanh"),
    ),
    **dict.fromkeys(("silu", "swish"), lambda graph, x: graph.op("Mul", x, graph.op("Sigmoid", x))),
    "quick_gelu": lambda graph, x: graph.op("Mul", x, graph.op("Sigmoid", graph.op("Mul", x, graph.constant(1.702)))),
}


def export(run: Path, output: Path, *, quantization: str | None = None) -> None:
    """
    Write the graphs of a run, its tokenizer, and its settings of the search into an empty folder.

    Args:
        quantization: "float32", or "int8" for weights of a byte each.
    """
    quantization = quantization or "float32"
    if quantization not in QUANTIZATIONS:
        raise InteropError(f"quantization {quantization!r}: --to onnx has {' and '.join(QUANTIZATIONS)}")
    model = AutoModelForSeq2SeqLM.from_pretrained(run, dtype=torch.float32).eval()
    refuse_other_searches(check_search, model.generation_config)
    write_graphs(model, output, in_eight_bits=quantization == "int8")
    for name in COPIED:
        if (run / name).is_file():
            shutil.copyfile(run / name, output / name)


def write_graphs(model: PreTrainedModel, output: Path, in_eight_bits: bool = False) -> None:
    """The two graphs, and the configuration, which a search over them reads."""
    (output / ENCODER).write_bytes(encoder(model, in_eight_bits))
    (output / DECODER).write_bytes(decoder(model, in_eight_bits))
    (output / MODEL_CONFIG).write_text(model.config.to_json_string(), encoding="utf-8")


def encoder(model: Any, in_eight_bits: bool = False) -> bytes:
    config, stack = model.config, model.get_encoder()
    graph = Graph("encoder", in_eight_bits)
    tokens = graph.input("input_ids", "int64", ("rows", "source"))
    mask = graph.input("attention_mask", "int64", ("rows", "source"))
    counted = graph.op("Sub", graph.op("CumSum", mask, graph.constant(1, "int64")), graph.constant(1, "int64"))
    positions = graph.op("Max", counted, graph.constant(0, "int64"))  # padding takes up no position
    states = embedded(graph, stack, stack.embed_tokens, tokens, positions)
    hidden = hidden_sources(graph, mask)
    for layer in stack.layers:

        def look(x: str, attention: Any = layer.self_attn) -> str:
            key, value = keys_and_values(graph, attention, x)
            return attend(graph, attention, x, key, value, hidden)[0]

        states = sublayer(graph, layer.self_attn_sublayer, states, look)
        states = feed_forward(graph, layer, states)
    states = graph.normalised(states, stack.layer_norm)
    graph.output("last_hidden_state", states, ("rows", "source", config.d_model))
    for number, layer in enumerate(model.get_decoder().layers):
        of_layer = zip(keys_and_values(graph, layer.cross_attn, states), kinds(config), strict=True)
        for name, (kind, size) in of_layer:
            graph.output(f"source.{number}.{kind}", name, ("rows", config.num_heads, "source", size))
    return graph.model()


def decoder(model: Any, in_eight_bits: bool = False) -> bytes:
    config, stack = model.config, model.get_decoder()
    graph = Graph("decoder", in_eight_bits)
    tokens = graph.input("input_ids", "int64", ("rows", "target"))
    mask = graph.input("attention_mask", "int64", ("source_rows", "source"))
    numbers, heads = range(config.decoder_layers), config.num_heads
    past, source = (
        [
            [graph.input(f"{name}.{i}.{kind}", "float32", (rows, heads, length, size)) for kind, size in kinds(config)]
            for i in numbers
        ]
        for name, rows, length in (("past", "rows", "past"), ("source", "source_rows", "source"))
    )
    first, last = (graph.op("Squeeze", each) for each in ends_of(graph, tokens, past[0][0]))
    positions = graph.op("Range", first, last, graph.constant(1, "int64"))
    states = embedded(graph, stack, stack.embed_tokens or model.get_input_embeddings(), tokens, positions)
    hidden = hidden_sources(graph, mask)
    causal = hidden_future(graph, positions, last)
    for number, layer in enumerate(stack.layers):

        def look_back(x: str, number: int = number, attention: Any = layer.self_attn) -> str:
            both = zip(past[number], keys_and_values(graph, attention, x), strict=True)
            key, value = (graph.op("Concat", before, new, axis=2) for before, new in both)
            for now, (kind, size) in zip((key, value), kinds(config), strict=True):
                graph.output(f"present.{number}.{kind}", now, ("rows", heads, "present", size))
            return attend(graph, attention, x, key, value, causal)[0]

        def look_at_source(x: str, number: int = number, attention: Any = layer.cross_attn) -> str:
            key, value = source[number]
            found, weights = attend(graph, attention, x, key, value, hidden)
            graph.output(f"attention.{number}", weights, ("rows", heads, "target", "source"))
            return found

        states = sublayer(graph, layer.self_attn_sublayer, states, look_back)
        states = sublayer(graph, layer.cross_attn_sublayer, states, look_at_source)
        states = feed_forward(graph, layer, states)
    logits = graph.linear(graph.normalised(states, stack.layer_norm), model.get_output_embeddings())
    graph.output("logits", logits, ("rows", "target", config.vocab_size))
    return graph.model()


def kinds(config: Any) -> tuple[tuple[str, int], tuple[str, int]]:
    return ("key", config.d_kv), ("value", config.d_v)


def embedded(graph: Graph, stack: Any, embedding: Any, tokens: str, positions: str) -> str:
    """sqrt(d_model) embedding(token) + position."""
    config = stack.config
    looked_up = graph.op("Gather", graph.matrix(embedding.weight), tokens)
    scaled = graph.op("Mul", looked_up, graph.constant(math.sqrt(config.d_model)))
    if config.position_embedding_type == "learned":
        encoded = graph.op("Gather", graph.vector(stack.embed_positions.weight), positions)
    else:
        encoded = sinusoids(graph, positions, config.d_model)
    return graph.op("Add", scaled, encoded)


def sinusoids(graph: Graph, positions: str, width: int) -> str:
    """Sines at even places and cosines at odd ones, by the same roundings as modeling_vanilla.py's."""
    even = torch.arange(0, width, 2, dtype=torch.float32)
    rates = graph.vector(torch.exp(even * (-math.log(10_000) / width)))
    floats = graph.op("Cast", positions, to=1)
    angles = graph.op("Mul", graph.op("Unsqueeze", floats, graph.constant([-1], "int64")), rates)
    waves = [graph.op("Unsqueeze", graph.op(kind, angles), graph.constant([-1], "int64")) for kind in ("Sin", "Cos")]
    pairs = graph.op("Concat", *waves, axis=-1)
    shape = graph.op("Concat", graph.op("Shape", positions), graph.constant([width], "int64"), axis=0)
    return graph.op("Reshape", pairs, shape)  # (..., D / 2, 2) -> (..., D)


def ends_of(graph: Graph, tokens: str, past: str) -> tuple[str, str]:
    """How many tokens there were before, and how many there are with the new ones."""
    before = graph.op("Shape", past, start=2, end=3)
    return before, graph.op("Add", before, graph.op("Shape", tokens, start=1, end=2))


def hidden_sources(graph: Graph, mask: str) -> str:
    """(B, S), 1 for tokens and 0 for padding -> (B, 1, 1, S), what is added to scores."""
    is_padding = graph.op("Equal", mask, graph.constant(0, "int64"))
    added = graph.op("Where", is_padding, graph.constant(HIDDEN), graph.constant(0.0))
    return graph.op("Unsqueeze", added, graph.constant([1, 2], "int64"))


def hidden_future(graph: Graph, positions: str, last: str) -> str:
    """What is added to the scores of tokens after those that look: (T, P + T)."""
    every = graph.op("Range", graph.constant(0, "int64"), last, graph.constant(1, "int64"))
    is_later = graph.op("Greater", every, graph.op("Unsqueeze", positions, graph.constant([1], "int64")))
    return graph.op("Where", is_later, graph.constant(HIDDEN), graph.constant(0.0))


def sublayer(graph: Graph, around: Any, states: str, inner: Callable[[str], str]) -> str:
    if around.norm_first:
        return graph.op("Add", states, inner(graph.normalised(states, around.layer_norm)))
    return graph.normalised(graph.op("Add", states, inner(states)), around.layer_norm)


def feed_forward(graph: Graph, layer: Any, states: str) -> str:
    network, name = layer.feed_forward, layer.self_attn.config.activation_function
    if name not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise InteropError(f"activation_function {name!r} cannot be exported to ONNX; what can be: {known}")

    def inner(x: str) -> str:
        return graph.linear(ACTIVATIONS[name](graph, graph.linear(x, network.fc1)), network.fc2)

    return sublayer(graph, layer.feed_forward_sublayer, states, inner)


def split_heads(graph: Graph, states: str, heads: int, size: int) -> str:
    """(B, L, H * K) -> (B, H, L, K)."""
    shape = graph.constant([0, 0, heads, size], "int64")  # 0 copies
    return graph.op("Transpose", graph.op("Reshape", states, shape), perm=[0, 2, 1, 3])


def keys_and_values(graph: Graph, attention: Any, states: str) -> tuple[str, str]:
    key = split_heads(graph, graph.linear(states, attention.k_proj), attention.num_heads, attention.head_size)
    value = split_heads(graph, graph.linear(states, attention.v_proj), attention.num_heads, attention.value_size)
    return key, value


def attend(graph: Graph, attention: Any, states: str, key: str, value: str, hidden: str) -> tuple[str, str]:
    """Multi-head attention, and its weights (B, H, T, S)."""
    query = split_heads(graph, graph.linear(states, attention.q_proj), attention.num_heads, attention.head_size)
    scores = graph.op("MatMul", query, graph.op("Transpose", key, perm=[0, 1, 3, 2]))
    scaled = graph.op("Mul", scores, graph.constant(attention.scaling))
    weights = graph.op("Softmax", graph.op("Add", scaled, hidden), axis=-1)
    heads = graph.op("Transpose", graph.op("MatMul", weights, value), perm=[0, 2, 1, 3])
    joined = graph.op("Reshape", heads, graph.constant([0, 0, attention.num_heads * attention.value_size], "int64"))
    return graph.linear(joined, attention.o_proj), weights
