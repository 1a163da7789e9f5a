"""application/x-ndjson: one sample a line, each as it stands in application/json."""

import numpy as np
from msgspec import UNSET

from service.codecs.door import BadRow, Door
from service.codecs.intake import Intake, IntakeBuilder
from service.codecs.json_rows import read_sample
from service.codecs.row_arrays import RowArrays
from service.errors import RowError
from solvers.text import POWERS_OF_TEN, read_samples

# Below this, arrays cost more than lists.
_FEW_BYTES = 4096
_SPACE = b" \t\r"  # JSON's white space within a line


def parse_ndjson(door: Door, body: bytes, labelled: bool) -> Intake:
    """Rows of NDJSON. A line that does not parse is a bad row; blank lines are none."""
    if len(body) >= _FEW_BYTES:
        intake = parse_quickly(door, body, labelled)
        if intake is not None:
            return intake
    return parse_slowly(door, body, labelled)


def parse_quickly(door: Door, body: bytes, labelled: bool) -> Intake | None:
    """As `parse_slowly`, by a kernel where lines are of the usual form; None where rows have ids.

    A row with an id is a part of a request of its own, which no array is any help for.
    """
    if not body.endswith(b"\n"):
        body += b"\n"
    rows = body.count(b"\n")
    entries = body.count(b":") + (0 if door.is_hashed else body.count(b",") + rows)
    arrays = RowArrays(door, labelled, rows, entries, len(body))
    text = np.frombuffer(body, np.uint8)
    ascii_only = body.isascii() or not _is_utf8(body)
    errors: list[RowError] = []
    while _read(arrays, text, ascii_only):
        start, line, place, _ = arrays.at.tolist()
        end = body.index(b"\n", start)
        build = IntakeBuilder(door, labelled)
        try:
            take_line(build, place, body[start:end], door.is_hashed, labelled)
        except BadRow as bad:
            errors.append(RowError(place, bad.pointer, bad.reason, line + 1))
        else:
            one = build.listed
            if one.ids:
                return None
            arrays.take(text, one, place)
        arrays.at[:3] = end + 1, line + 1, place + 1
    return arrays.intake(errors)


def _read(a: RowArrays, text: np.ndarray, ascii_only: bool) -> bool:
    """Let the kernel read on; whether it stopped before the end."""
    return bool(
        read_samples(
            text, ascii_only, a.dim, a.label_kind, a.is_telling, POWERS_OF_TEN,
            a.indptr, a.indices, a.values, a.labels, a.weights, a.places, a.spare, a.held,
            a.told, a.seen, a.name_places, a.name_ends, a.names, a.counts,
            a.label_slots, a.label_ends, a.label_text, a.buffer, a.at,
        )
    )  # fmt: skip


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def parse_slowly(door: Door, body: bytes, labelled: bool) -> Intake:
    """Line by line, with the reason of each bad one."""
    build = IntakeBuilder(door, labelled)
    place = 0
    for number, line in enumerate(body.split(b"\n"), 1):
        if not line.strip(_SPACE):
            continue
        try:
            take_line(build, place, line, door.is_hashed, labelled)
        except BadRow as bad:
            build.refuse(place, bad.pointer, bad.reason, number)
        place += 1
    return build.intake()


def take_line(
    build: IntakeBuilder, place: int, line: bytes, is_hashed: bool, labelled: bool
) -> None:
    """Add the sample of one line; raises BadRow and adds nothing."""
    sample = read_sample(line, is_hashed)
    y = None if sample.y is UNSET else sample.y
    if labelled and sample.y is UNSET:
        raise BadRow("/y", "the label is missing")
    weight = 1.0 if sample.weight is UNSET else sample.weight
    build.take(place, sample.x, y, weight, None if sample.id is UNSET else sample.id)
