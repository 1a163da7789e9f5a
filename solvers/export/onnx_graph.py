"""A graph of ONNX as it is written down: nodes by what they compute, each once."""

import hashlib
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 18, 8
"""Of 2022, which ONNX Runtime reads since 1.14."""


class Graph:
    """Names stand for tensors of float64, unless said otherwise. The same node is made once."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._known: dict[Any, str] = {}

    def constant(self, value: Any, kind: Any = np.float64) -> str:
        """The name of a tensor that is always this one."""
        array = np.asarray(value, kind)
        key = (array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest())
        if key not in self._known:
            self._known[key] = f"c{len(self.constants)}"
            # from_array writes the bytes as little-endian ones.
            self.constants.append(numpy_helper.from_array(array, self._known[key]))
        return self._known[key]

    def node(self, operator: str, *inputs: Any, **attributes: Any) -> str:
        """The name of what an operator makes of tensors; a number or an array is a constant."""
        names = [one if isinstance(one, str) else self.constant(one) for one in inputs]
        key = (operator, *names, *sorted(attributes.items()))
        if key not in self._known:
            self._known[key] = f"t{len(self.nodes)}"
            output = [self._known[key]]
            self.nodes.append(helper.make_node(operator, names, output, **attributes))
        return self._known[key]

    def named(self, name: str, value: str) -> None:
        """Call a tensor by this name, too."""
        self.nodes.append(helper.make_node("StoreIdentity", [value], [name]))

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
