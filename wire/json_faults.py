"""Reasons why a text is not JSON, where those of the decoder mislead."""

import re

_HALF_CHARACTER = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")


def json_fault(text: bytes, reason: str) -> str:
    """The reason of msgspec, which calls half of a surrogate pair a truncated input."""
    if "truncated" not in reason and "surrogate" not in reason:
        return reason
    match = _HALF_CHARACTER.search(text)
    if match is None:
        return reason
    escape = match.group().decode()
    return f"{escape} is half of a surrogate pair (byte {match.start()}); send the whole character"
