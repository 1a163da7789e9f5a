"""Label and id of a row, by the names that the model's specification gives them."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

_fields = msgspec.json.Decoder(dict[str, Raw])


def _decoded(line: bytes) -> dict[str, Raw]:
    """The fields of a row. None if it is nested too deeply: the server refuses such rows."""
    try:
        return _fields.decode(line)
    except RecursionError:
        return {}


def field_at(fields: Mapping[str, Raw], name: str) -> bytes | None:
    """JSON of a field, also of a nested one: `user.age` is in `{"user": {"age": 39}}`."""
    if name in fields:
        return bytes(fields[name])
    owner, dot, inner = name.partition(".")
    nested = bytes(fields.get(owner, b"")) if dot else b""
    return field_at(_decoded(nested), inner) if nested.startswith(b"{") else None


def read_field(line: bytes, name: str) -> bytes | None:
    """JSON of a field of a row; None if the row does not have it."""
    return field_at(_decoded(line), name)


class RowFields:
    """Reads rows of a model: flat ones by its `columns`, others by the names `id` and `y`."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        columns = spec.get("columns") or {}
        self.label: str = columns.get("label") or "y"
        self.id: str = columns.get("id") or "id"
        self._missing = frozenset(
            one for one in columns.get("missing", ()) if isinstance(one, str)
        ) | {None}

    def read(self, line: bytes) -> tuple[bytes | None, bytes | None]:
        """JSON of the row's id and of its label. None if absent, null or a missing value."""
        fields = _decoded(line)
        id_, label = field_at(fields, self.id), field_at(fields, self.label)
        if bytes(fields.get("x", b"")).startswith(b"{"):  # the form {"x": {...}, "y": 1}
            id_ = id_ or field_at(fields, "id")
            label = label or field_at(fields, "y")
        return self._present(id_), self._present(label)

    def _present(self, value: bytes | None) -> bytes | None:
        is_text = value is not None and value.startswith((b'"', b"n"))
        if value is None or (is_text and msgspec.json.decode(value) in self._missing):
            return None
        return value
