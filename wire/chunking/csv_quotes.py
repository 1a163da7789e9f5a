"""Quoted fields of CSV, which may hold commas, ends of lines and doubled quotes."""

import re

_REST_OF_QUOTED = re.compile(rb'[^"]*+(?:""[^"]*+)*+"')


def quoted_end(body: bytes | bytearray, start: int) -> int:
    """The place behind the closing quote of the field that opens at `start`; -1 without one."""
    found = _REST_OF_QUOTED.match(body, start + 1)
    return -1 if found is None else found.end()
