"""Tensors of the Open Inference Protocol: JSON or binary data -> checked values, and back.

Binary data follow the JSON of a request or an answer, in the order of the tensors, little-endian
and without padding (the protocol's binary tensor data extension, which Triton's clients use unless
they are asked not to). The length of the JSON is in a header, the length of each tensor's data in
its parameter `binary_data_size`.
"""

import struct
from collections.abc import Mapping, Sequence
from itertools import chain
from math import prod
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from dualstream.service.codecs.json_exact import check_all_names
from dualstream.service.codecs.row_schema import BadRow
from dualstream.wire.plural import plural
from dualstream.wire.problem_json import Problem, quoted

HEADER = "Inference-Header-Content-Length"
"""Length of the JSON in front of binary data, in bytes."""
BINARY = "binary_tensor_data"
"""Name of the extension in the server's metadata."""

_BYTES, _BOOL = "BYTES", "BOOL"
_INTEGERS = {
    f"{u}INT{8 * size}": f"<{u.lower() or 'i'}{size}" for u in ("", "U") for size in (1, 2, 4, 8)
}
_FLOATS = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8"}
_DTYPES = {_BOOL: "u1"} | _INTEGERS | _FLOATS
NUMERIC = frozenset(_DTYPES)
DATATYPES = (*_DTYPES, _BYTES)
_RANGES: dict[str, tuple[float | int, float | int]] = {
    **{name: (int(np.iinfo(of).min), int(np.iinfo(of).max)) for name, of in _INTEGERS.items()},
    **{name: (-float(np.finfo(of).max), float(np.finfo(of).max)) for name, of in _FLOATS.items()},
}
_NOT_SUPPORTED = ("shared_memory_region", "classification")
_LENGTH = struct.Struct("<I")

Parameters = dict[str, Any]


class Tensor(Struct):
    """Values in row order: flat or nested in `data`, or binary."""

    name: str
    shape: list[Annotated[int, Meta(ge=0)]]
    datatype: str
    data: list[Any] | UnsetType = UNSET
    parameters: Parameters = {}


class RequestedOutput(Struct):
    """A requested output; its parameter `binary_data` asks for binary data."""

    name: str
    parameters: Parameters = {}


class Inference(Struct):
    """Body of an inference request; other fields and parameters are ignored."""

    inputs: Annotated[list[Tensor], Meta(min_length=1)]
    id: str | None = None
    outputs: list[RequestedOutput] | None = None
    parameters: Parameters = {}


_decode = msgspec.json.Decoder(Inference).decode


def read_inference(body: bytes, header: str | None) -> Inference:
    """Decode a request whose JSON has the length in `header` (None: the whole body).

    `data` of each input then has its values in row order, checked against datatype and shape.
    Raises Problem 400 if the body is malformed, 422 for a tensor that contradicts itself.
    """
    length = len(body) if header is None else _header_length(header, len(body))
    try:
        requested = _decode(body[:length])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as wrong:
        raise Problem(400, "malformed-body", str(wrong)) from None
    try:
        check_all_names(body[:length])
    except BadRow as bad:
        raise bad_tensor(f"{bad.reason} in one JSON object; send it once") from None
    for io in (*requested.inputs, *(requested.outputs or ())):
        for name in _NOT_SUPPORTED:
            if io.parameters.get(name):
                raise bad_tensor(f"{quoted(io.name)}: the parameter {name!r} is not supported")
    at = length
    for tensor in requested.inputs:
        where = f"input {quoted(tensor.name)}"
        if tensor.datatype not in DATATYPES:
            names = ", ".join(DATATYPES)
            raise bad_tensor(
                f"{where} has the unknown datatype {quoted(tensor.datatype)}; known: {names}"
            )
        size = tensor.parameters.get("binary_data_size")
        if size is None:
            tensor.data = _flat(tensor, where)
            _check_values(tensor, where)
            continue
        if tensor.data is not UNSET:
            raise bad_tensor(f"{where} has both data and binary_data_size; send one of them")
        if header is None:
            raise bad_tensor(f"{where} has binary data; send the length of the JSON as {HEADER}")
        if type(size) is not int or not 0 <= size <= len(body) - at:
            detail = f"{where} has binary_data_size {size!r}; {plural(len(body) - at, 'byte')} left"
            raise bad_tensor(detail)
        tensor.data = _from_bytes(tensor, body[at : at + size], where)
        at += size
    if at != len(body):
        left = plural(len(body) - at, "byte")
        raise bad_tensor(f"{left} after the last tensor; check binary_data_size")
    return requested


def _header_length(header: str, size: int) -> int:
    if not (header.isascii() and header.isdigit() and len(header) < 20 and int(header) <= size):
        detail = (
            f"{HEADER} must be the length of the JSON, at most {size} bytes; got {quoted(header)}"
        )
        raise Problem(400, "malformed-body", detail)
    return int(header)


def _flat(tensor: Tensor, where: str) -> list[Any]:
    """The data in row order. Raises Problem 422 if it does not have the given shape."""
    if tensor.data is UNSET:
        raise bad_tensor(f"{where} has no data; send `data`, or binary data with binary_data_size")
    flat: list[Any] = tensor.data
    for _ in tensor.shape[1:]:
        if flat and all(isinstance(one, list) for one in flat):
            flat = list(chain.from_iterable(flat))
    if len(flat) != prod(tensor.shape) or any(isinstance(one, list) for one in flat):
        raise bad_tensor(f"the data of {where} do not have shape {tensor.shape}")
    return flat


def _check_values(tensor: Tensor, where: str) -> None:
    """Refuse JSON values that are not of the datatype; a null is left to the check of rows."""
    assert tensor.data is not UNSET
    datatype = tensor.datatype
    for index, value in enumerate(tensor.data):
        if value is not None and not _fits(value, datatype):
            shown = quoted(msgspec.json.encode(value).decode())
            raise bad_tensor(f"{where}: value {index}, {shown}, is not {_expected(datatype)}")


def _fits(value: Any, datatype: str) -> bool:
    kind = type(value)
    if datatype == _BYTES:
        return kind is str
    if datatype == _BOOL or kind is bool:
        return datatype == _BOOL and kind is bool
    if kind is not int and kind is not float:
        return False
    low, high = _RANGES[datatype]
    return low <= value <= high and (datatype in _FLOATS or value == int(value))


def _expected(datatype: str) -> str:
    if datatype == _BYTES:
        return "a string (BYTES)"
    if datatype == _BOOL:
        return "true or false (BOOL)"
    low, high = _RANGES[datatype]
    kind = "a number" if datatype in _FLOATS else "an integer"
    return f"{kind} from {low} to {high} ({datatype})"


def _from_bytes(tensor: Tensor, raw: bytes, where: str) -> list[Any]:
    """Values of binary data. Raises Problem 422 if they do not have the shape or datatype."""
    count = prod(tensor.shape)
    if tensor.datatype == _BYTES:
        return _strings(raw, count, where)
    dtype = np.dtype(_DTYPES[tensor.datatype])
    if len(raw) != count * dtype.itemsize:
        raise bad_tensor(
            f"{where} has {plural(len(raw), 'byte')} of data, not {count * dtype.itemsize}:"
            f" {plural(count, 'value')} of {tensor.datatype}"
        )
    values = np.frombuffer(raw, dtype)
    if tensor.datatype == _BOOL:
        wrong = np.flatnonzero(values > 1)
        values = values.astype(bool)
    else:
        wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        expected = "0 or 1 (BOOL)" if tensor.datatype == _BOOL else "a finite number"
        raise bad_tensor(f"{where}: value {wrong[0]} is not {expected}")
    items: list[Any] = values.tolist()
    return items


def _strings(raw: bytes, count: int, where: str) -> list[Any]:
    """BYTES: each value is its length, 4 bytes, and its bytes."""
    strings: list[Any] = []
    at = 0
    while at < len(raw):
        end = at + _LENGTH.size
        if end <= len(raw):
            end += _LENGTH.unpack_from(raw, at)[0]
        if end > len(raw):
            raise bad_tensor(f"{where}: value {len(strings)} is longer than the data that are left")
        try:
            strings.append(raw[at + _LENGTH.size : end].decode())
        except UnicodeDecodeError:
            raise bad_tensor(f"{where}: value {len(strings)} is not UTF-8") from None
        at = end
    if len(strings) != count:
        raise bad_tensor(
            f"{where} has {plural(len(strings), 'value')} of BYTES, its shape has {count}"
        )
    return strings


def encode_answer(
    answer: Mapping[str, Any],
    columns: Mapping[str, tuple[str, Sequence[Any]]],
    requested: Inference,
) -> tuple[bytes, int | None]:
    """The body of an answer with these outputs (name -> datatype and values).

    Also returns the length of its JSON if binary data follow. Raises Problem 422 for an unknown
    output.
    """
    outputs, blobs, is_binary = [], [], False
    by_default = requested.parameters.get("binary_data_output", False)
    for one in requested.outputs or [RequestedOutput(name) for name in columns]:
        if one.name not in columns:
            raise bad_tensor(f"unknown output {quoted(one.name)}; known: {', '.join(columns)}")
        datatype, values = columns[one.name]
        output: dict[str, Any] = {"name": one.name, "datatype": datatype, "shape": [len(values)]}
        if one.parameters.get("binary_data", by_default) is True:
            blob, is_binary = _to_bytes(datatype, values), True
            blobs.append(blob)
            output["parameters"] = {"binary_data_size": len(blob)}
        else:
            output["data"] = values
        outputs.append(output)
    head = msgspec.json.encode({**answer, "outputs": outputs})
    return head + b"".join(blobs), len(head) if is_binary else None


def _to_bytes(datatype: str, values: Sequence[Any]) -> bytes:
    if datatype != _BYTES:
        return np.array(values, _DTYPES[datatype]).tobytes()
    texts = [value.encode() for value in values]
    return b"".join(_LENGTH.pack(len(text)) + text for text in texts)


def bad_tensor(detail: str) -> Problem:
    """Problem 422 for a tensor that the model or the protocol cannot use."""
    return Problem(422, "invalid-tensors", detail)
