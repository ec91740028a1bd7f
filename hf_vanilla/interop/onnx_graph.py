"""Writes an ONNX graph node by node, with weights in float32 or in eight bits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from .errors import InteropError

OPSET = 21
IR_VERSION = 10  # the one that came with it: a later one would keep older engines out
TYPES = {"int64": TensorProto.INT64, "float32": TensorProto.FLOAT}

Shape = Sequence[str | int]


class Graph:
    """
    Nodes and weights of a graph. What each method returns is the name of its result.

    Args:
        in_eight_bits: Whether matrices are stored as integers of -127 to 127 with a scale for each row. Engines turn
            them into float32 once, when they load the graph: only the weights are rounded, nothing is at run time.
    """

    def __init__(self, name: str, in_eight_bits: bool = False):
        self.name = name
        self.in_eight_bits = in_eight_bits
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.matrices: dict[int, str] = {}  # by the address of their values: tied ones are stored once

    def op(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        output = output or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def input(self, name: str, kind: str, shape: Shape) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TYPES[kind], shape))
        return name

    def output(self, name: str, value: str, shape: Shape) -> None:
        self.op("Identity", value, output=name)
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def constant(self, value: Any, kind: str = "float32") -> str:
        """The same constant twice is stored once."""
        array = np.asarray(value, kind)
        return self._stored(f"{kind}_{array.shape}_{array.tobytes().hex()}" if array.size < 9 else "", array)

    def vector(self, weights: Tensor) -> str:
        return self._stored("", as_numpy(weights))

    def matrix(self, weights: Tensor) -> str:
        """Rows are what a linear map computes, or what an embedding looks up."""
        address = weights.data_ptr()
        if address not in self.matrices:
            values = as_numpy(weights)
            if self.in_eight_bits:
                whole, scales = rounded(values)
                integers = self.op("Cast", self._stored("", whole), to=TensorProto.FLOAT)
                self.matrices[address] = self.op("Mul", integers, self._stored("", scales))
            else:
                self.matrices[address] = self._stored("", values)
        return self.matrices[address]

    def linear(self, states: str, layer: nn.Linear) -> str:
        transposed = self.op("Transpose", self.matrix(layer.weight), perm=[1, 0])  # engines do this once, too
        product = self.op("MatMul", states, transposed)
        return product if layer.bias is None else self.op("Add", product, self.vector(layer.bias))

    def normalised(self, states: str, layer: nn.Module) -> str:
        if isinstance(layer, nn.Identity):
            return states
        if not isinstance(layer, nn.LayerNorm):
            raise InteropError(f"cannot be exported: {type(layer).__name__} in the place of a layer normalisation")
        weights = (self.vector(layer.weight), self.vector(layer.bias))
        return self.op("LayerNormalization", states, *weights, axis=-1, epsilon=layer.eps)

    def model(self) -> bytes:
        graph = helper.make_graph(
            self.nodes, self.name, self.inputs, self.outputs, initializer=list(self.initializers.values())
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, producer_name="hf_vanilla", opset_imports=opsets, ir_version=IR_VERSION)
        onnx.checker.check_model(model)
        return model.SerializeToString()

    def _stored(self, name: str, array: np.ndarray) -> str:
        name = name or f"weight_{len(self.initializers)}"
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name


def as_numpy(weights: Tensor) -> np.ndarray:
    values: np.ndarray = weights.detach().float().cpu().numpy()
    return values


def rounded(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row as whole numbers of -127 to 127 times its scale: int8 (N, M), float32 (N, 1)."""
    scales = np.abs(rows).max(1, keepdims=True) / np.float32(127)
    scales[scales == 0] = 1
    return np.rint(rows / scales).astype(np.int8), scales
