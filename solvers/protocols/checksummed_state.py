"""Snapshot format of states: safetensors with sorted keys, so equal states are equal bytes.

    8 bytes, little-endian: length of the header
    header: JSON, name -> {"dtype", "shape", "data_offsets"}, and "__metadata__", strings only
    the arrays, in order of name, one after the other

The metadata holds the version of this format and the SHA-256 of everything else.
"""

import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dualstream.solvers.errors import CorruptState

FORMAT = 1
_FORMAT_KEY, _DIGEST_KEY = "dualstream_format", "sha256"
_NO_DIGEST = "0" * 64
_DIGEST_ENTRY = b'"sha256":"%s"'
_PART = 1 << 21
_DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
# Exceptions of parsing damaged bytes.
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, IndexError)
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def dump(arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    """The bytes that `load` reads; equal arrays and metadata give equal bytes.

    Raises ValueError for an array type other than float64, float32, int64, int32, uint8 or bool,
    and for metadata with a reserved name.
    """
    head, data = _signed(arrays, metadata)
    # Short copies, because each keeps the interpreter's lock. `getvalue` copies nothing.
    content = io.BytesIO()
    content.write(head)
    for part in data:
        for at in range(0, len(part), _PART):
            content.write(part[at : at + _PART])
    return content.getvalue()


def digest_of(arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> str:
    """SHA-256 in hex of the bytes that `dump` returns, which are not built."""
    return _sha256(*_signed(arrays, metadata))


def _signed(
    arrays: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]
) -> tuple[bytes, list[memoryview]]:
    """The head with the digest, and the bytes of each array."""
    header: dict[str, Any] = {}
    data, offset = [], 0
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        if array.dtype not in _NAMES:
            raise ValueError(f"{name} is an array of {array.dtype}, which a state cannot hold")
        header[name] = {
            "dtype": _NAMES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        data.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        offset += array.nbytes
    own = {_FORMAT_KEY: str(FORMAT), _DIGEST_KEY: _NO_DIGEST}
    for name in own:
        if name in metadata:
            raise ValueError(f"{name} is a reserved name of the format")
    header["__metadata__"] = {**metadata, **own}
    head = _head(header)
    # The quotes are escaped within strings, and an array entry is an object, so this text occurs
    # once.
    signed = _DIGEST_ENTRY % _sha256(head, data).encode()
    return head.replace(_DIGEST_ENTRY % _NO_DIGEST.encode(), signed), data


def load(content: bytes) -> tuple[dict[str, npt.NDArray[Any]], dict[str, str]]:
    """The arrays (as copies) and the metadata that `dump` wrote.

    Raises CorruptState for anything that is not a complete output of `dump`.
    """
    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        metadata = header["__metadata__"]
        digest, version = metadata.pop(_DIGEST_KEY), metadata.pop(_FORMAT_KEY)
        unsigned = content[: 8 + length].replace(digest.encode(), _NO_DIGEST.encode(), 1)
    except (*_DAMAGE, RecursionError) as error:
        raise CorruptState(f"not a state: {error!r}") from error
    if version != str(FORMAT):
        raise CorruptState(f"a state of format {version}; this version reads {FORMAT}")
    for name, value in metadata.items():
        if not isinstance(value, str):
            raise CorruptState(f"not a state: its {name} is not a string")
    data = memoryview(content)[8 + length :]
    if digest != _sha256(unsigned, [data]):
        raise CorruptState("the bytes do not match their SHA-256")
    del header["__metadata__"]
    try:
        return {name: _array(entry, data) for name, entry in header.items()}, metadata
    except _DAMAGE as error:
        raise CorruptState(f"an array is not where the header says: {error!r}") from error


def _head(header: Mapping[str, Any]) -> bytes:
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _sha256(head: bytes, data: Iterable[memoryview]) -> str:
    digest = hashlib.sha256(head)
    for part in data:
        digest.update(part)
    return digest.hexdigest()


def _array(entry: Mapping[str, Any], data: memoryview) -> npt.NDArray[Any]:
    first, last = entry["data_offsets"]
    dtype, shape = _DTYPES[entry["dtype"]], entry["shape"]
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or not 0 <= first <= last <= len(data) or last - first != size:
        raise ValueError(f"{shape} of {dtype} in bytes {first} to {last} of {len(data)}")
    array: npt.NDArray[Any] = np.ndarray(shape, dtype, data, first)
    return array.copy()
