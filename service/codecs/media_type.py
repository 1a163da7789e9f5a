"""Media types of row formats: aliases and parameters."""

import re
from functools import lru_cache
from urllib.parse import unquote

from dualstream.wire.chunking.csv_records import DELIMITERS
from dualstream.wire.problem_json import Problem, quoted

_ALIASES = {
    "application/ndjson": "application/x-ndjson",
    "application/jsonl": "application/x-ndjson",
    "application/jsonlines": "application/x-ndjson",
    "application/x-jsonlines": "application/x-ndjson",
    "application/csv": "text/csv",
}
_TABS = "text/tab-separated-values"
_CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii")
_PARAMETERS: dict[str, dict[str, tuple[str, ...]]] = {
    "application/json": {},
    "application/x-ndjson": {},
    "application/vnd.apache.arrow.stream": {},
    "text/x-libsvm": {},
    "text/csv": {"header": ("present",), "delimiter": tuple(DELIMITERS), "decimal": (".", ",")},
    "text/x-vw": {"tag": ("id",)},
}
"""Media type -> parameter -> accepted values."""
_PARAMETER = re.compile(
    r"""\s*;\s*(?:([\w!#$&^.+-]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^;"\s]*))?\s*""", re.ASCII
)
_KIND = re.compile(r"\s*([^;\s]*)\s*")


@lru_cache(64)
def media_type(content_type: str | None) -> tuple[str, dict[str, str]]:
    """Media type and its parameters; JSON by default.

    Raises Problem 415 for other charsets, and for parameters that the type does not have.
    """
    if not content_type:
        return "application/json", {}
    match = _KIND.match(content_type)
    kind, parameters = match[1].lower() if match else "", {}
    p = match.end() if match else 0
    while p < len(content_type):
        match = _PARAMETER.match(content_type, p)
        if match is None:
            raise _refused(f"the content type {quoted(content_type)} is invalid")
        if match[1]:
            parameters[match[1].lower()] = _value(match[2])
        p = match.end()
    if kind == _TABS:
        kind, parameters = "text/csv", {"delimiter": "\t"} | parameters
    kind = _ALIASES.get(kind, kind)
    for name, value in parameters.items():
        _check(kind, name, value)
    return kind, parameters


def _value(written: str) -> str:
    """Value of a parameter: a token or a quoted string, with percent escapes."""
    if written.startswith('"'):
        written = re.sub(r"\\(.)", r"\1", written[1:-1])
    return unquote(written)


def _check(kind: str, name: str, value: str) -> None:
    if name == "charset":
        if value.lower() not in _CHARSETS:
            raise _refused(f"charset={value} is not supported; send UTF-8")
        return
    values = _PARAMETERS.get(kind)
    if values is None:  # the caller refuses the type
        return
    if name not in values:
        names = ", ".join([*values, "charset"])
        raise _refused(f"{kind} has no parameter {quoted(name)}; known: {names}")
    if value not in values[name]:
        if name == "header":
            raise _refused(f"text/csv needs a header line, got header={value}")
        accepted = " or ".join(map(repr, values[name]))
        raise _refused(f"the parameter {name} must be {accepted}, got {quoted(value)}")


def _refused(detail: str) -> Problem:
    return Problem(415, "unsupported-media-type", detail)
