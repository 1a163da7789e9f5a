"""Graph: builds an ONNX graph; equal nodes are created once."""

import hashlib
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 18, 8
"""Released in 2022; ONNX Runtime supports them since 1.14."""


class Graph:
    """Tensor names refer to float64 tensors by default. Equal nodes are created once."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._known: dict[Any, str] = {}

    def constant(self, value: Any, kind: Any = np.float64) -> str:
        """Name of a constant tensor."""
        array = np.asarray(value, kind)
        key = (array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest())
        if key not in self._known:
            self._known[key] = f"c{len(self.constants)}"
            # from_array stores the bytes as little-endian.
            self.constants.append(numpy_helper.from_array(array, self._known[key]))
        return self._known[key]

    def node(self, operator: str, *inputs: Any, **attributes: Any) -> str:
        """Name of the result of an operator; number and array arguments become constants."""
        names = [one if isinstance(one, str) else self.constant(one) for one in inputs]
        key = (operator, *names, *sorted(attributes.items()))
        if key not in self._known:
            self._known[key] = f"t{len(self.nodes)}"
            output = [self._known[key]]
            self.nodes.append(helper.make_node(operator, names, output, **attributes))
        return self._known[key]

    def sums(self, rows: str) -> str:
        """(n, 1): the sum of each row."""
        return self.node("ReduceSum", rows, self.constant([1], np.int64), keepdims=1)

    def smallest(self, rows: str, n: int) -> tuple[str, str]:
        """The n smallest numbers of each row, smallest first, and their places; of equal ones the
        first."""
        key = ("TopK", rows, n)
        if key not in self._known:
            self._known[key] = f"t{len(self.nodes)}"
            inputs = [rows, self.constant([n], np.int64)]
            outputs = [self._known[key], self._known[key] + "p"]
            self.nodes.append(helper.make_node("TopK", inputs, outputs, axis=1, largest=0))
        return self._known[key], self._known[key] + "p"

    def zeros(self, rows: str) -> str:
        """(n, 1)."""
        return self.node("Mul", self.squares(rows), 0.0)

    def named(self, name: str, value: str) -> None:
        """Give a tensor this additional name."""
        self.nodes.append(helper.make_node("Identity", [value], [name]))

    def squares(self, rows: str) -> str:
        """(n, 1): |row|^2."""
        return self.node("ReduceSumSquare", rows, self.constant([1], np.int64), keepdims=1)

    def write(
        self, inputs: dict[str, list[Any]], outputs: dict[str, list[Any]], about: dict[str, str]
    ) -> bytes:
        """The model as bytes; shapes by name, `about` as its metadata."""
        graph = helper.make_graph(
            self.nodes,
            "dualstream",
            [helper.make_tensor_value_info(n, TensorProto.DOUBLE, s) for n, s in inputs.items()],
            [helper.make_tensor_value_info(n, TensorProto.DOUBLE, s) for n, s in outputs.items()],
            self.constants,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="dualstream",
        )
        helper.set_model_props(model, dict(sorted(about.items())))
        written: bytes = model.SerializeToString(deterministic=True)
        return written
