"""Scanner of quoted CSV fields, which may contain commas, line ends and doubled quotes."""

import re

_REST_OF_QUOTED = re.compile(rb'[^"]*+(?:""[^"]*+)*+"')


def quoted_end(body: bytes | bytearray, start: int) -> int:
    """Offset after the closing quote of the field that opens at `start`; -1 if unclosed."""
    found = _REST_OF_QUOTED.match(body, start + 1)
    return -1 if found is None else found.end()
