"""The header `Dualstream-Source`: which rows of an ordered source a learn request holds.

    Dualstream-Source: "kafka/clicks/0"; from=100; to=199; lag=12
    Dualstream-Source: orders; from="0/16B3748"; next="0/16B3A90"; first

An item with parameters (RFC 8941): a token or a string, then integers, strings or booleans.
"""

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from msgspec import Struct

HEADER = "Dualstream-Source"
MAX_TEXT = 256
"""Characters of a source's name, and of an offset that is a text."""
MAX_OFFSET = 10**15 - 1
"""Largest integer of RFC 8941."""
Offset: TypeAlias = int | str

_NAMES = ("from", "to", "next", "lag", "first")
_TOKEN = re.compile(r"[A-Za-z*][!#$%&'*+\-.^_`|~0-9A-Za-z:/]*")
_STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_INTEGER = re.compile(r"-?[0-9]{1,15}(?![0-9.])")
_BOOLEAN = re.compile(r"\?([01])")
_PARAMETER = re.compile(r"; *([a-z*][a-z0-9_.*-]*)(=?)")
_TEXT = re.compile(rf"[ -~]{{1,{MAX_TEXT}}}")


class Source(Struct, frozen=True):
    """A batch of consecutive rows of a named source.

    Numeric offsets: `Source("kafka/clicks/0", 100, 199)`; `to` is the last offset of the batch, and
    the next batch begins at `to` + 1. Opaque offsets: `Source("orders", "a", next="b")`; the next
    batch begins at `next`. `lag` is the number of rows that the source has after this batch.
    `first` begins a source that the server does not know; it refuses any other batch of one.
    """

    name: str
    from_: Offset
    to: int | None = None
    next: str | None = None
    lag: int | None = None
    first: bool = False

    @property
    def following(self) -> Offset:
        """The offset at which the next batch begins."""
        if self.next is not None:
            return self.next
        assert self.to is not None
        return self.to + 1

    @property
    def is_numeric(self) -> bool:
        return isinstance(self.from_, int)

    def header(self) -> str:
        """The value of the header. Raises ValueError, as `check_source`."""
        check_source(self)
        fields = {"from": self.from_, "to": self.to, "next": self.next, "lag": self.lag}
        parameters = [
            f"; {name}={_serialized(value)}" for name, value in fields.items() if value is not None
        ]
        return _serialized(self.name) + "".join(parameters) + "; first" * self.first


def check_source(source: Source) -> None:
    """Raise ValueError unless name and offsets are valid and fit together."""
    check_name(source.name)
    start, to, following, lag = source.from_, source.to, source.next, source.lag
    check_offset("from", start)
    if lag is not None and not _is_number(lag):
        raise ValueError(f"lag must be an integer from 0 to {MAX_OFFSET}")
    if not isinstance(source.first, bool):
        raise ValueError("first is a boolean: send it without a value")
    if isinstance(start, int):
        if to is None or following is not None:
            raise ValueError("a numeric from needs to, the last offset of the batch, and no next")
        check_offset("to", to)
        if not (_is_number(to) and start <= to < MAX_OFFSET):
            raise ValueError(f"to must be an integer from {start} (from) to {MAX_OFFSET - 1}")
        return
    if following is None or to is not None:
        raise ValueError('a text as from needs next="...", the next offset, and no to')
    check_offset("next", following)
    if not isinstance(following, str) or following == start:
        raise ValueError("next must be another text than from")


def check_name(name: str) -> None:
    """Raise ValueError for an invalid name of a source."""
    if not (isinstance(name, str) and _TEXT.fullmatch(name)):
        raise ValueError(f"the source's name must have 1 to {MAX_TEXT} printable ASCII characters")


def check_offset(what: str, offset: Offset) -> None:
    """Raise ValueError for an invalid offset."""
    if not (_is_number(offset) or (isinstance(offset, str) and _TEXT.fullmatch(offset))):
        raise ValueError(
            f"{what} must be an integer from 0 to {MAX_OFFSET}, or a text of 1 to {MAX_TEXT}"
            " printable ASCII characters"
        )


def parse_source(header: bytes) -> Source:
    """Parse and check the value of the header. Raises ValueError."""
    try:
        text = header.decode("ascii").strip(" ")
    except UnicodeDecodeError:
        raise ValueError("it must be ASCII") from None
    if match := _TOKEN.match(text):
        name, at = match[0], match.end()
    else:
        needed = "the source's name must be a token or"
        quoted, at = _item(text, 0, needed)
        if not isinstance(quoted, str):
            raise ValueError(f'{needed} a text in "quotes", got {quoted}')
        name = quoted
    parameters: dict[str, Any] = {}
    for key, value in _parameters(text, at):
        if key not in _NAMES:
            raise ValueError(f"unknown parameter {key[:40]!r}; known: {', '.join(_NAMES)}")
        if key in parameters:
            raise ValueError(f"the parameter {key} is repeated")
        parameters[key] = value
    if "from" not in parameters:
        raise ValueError("the parameter from, the first offset of the batch, is missing")
    parameters["from_"] = parameters.pop("from")
    source = Source(name, **parameters)
    check_source(source)  # refuses values of another type
    return source


def _parameters(text: str, at: int) -> Iterator[tuple[str, Offset]]:
    while at < len(text):
        match = _PARAMETER.match(text, at)
        if match is None:
            raise ValueError(f'{text[at : at + 20]!r} is not a parameter as in "; from=100"')
        needed = f"{match[1]} must be an integer of up to 15 digits or"
        value, at = _item(text, match.end(), needed) if match[2] else (True, match.end())
        yield match[1], value


def _item(text: str, at: int, needed: str) -> tuple[Offset, int]:
    """The string, integer or boolean at this index, and the index after it."""
    if match := _STRING.match(text, at):
        return re.sub(r"\\(.)", r"\1", match[1]), match.end()
    if match := _INTEGER.match(text, at):
        return int(match[0]), match.end()
    if match := _BOOLEAN.match(text, at):
        return match[1] == "1", match.end()
    raise ValueError(f'{needed} a text in "quotes", got {text[at : at + 20]!r}')


def _serialized(value: Offset) -> str:
    if isinstance(value, int):
        return str(value)
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_OFFSET
