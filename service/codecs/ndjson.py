"""application/x-ndjson: one sample a line, each as it stands in application/json."""

import numpy as np
from msgspec import UNSET

from dualstream.service.codecs.json_exact import read_sample
from dualstream.service.codecs.parsed_rows import IntakeBuilder, ParsedRows
from dualstream.service.codecs.record_reader import LineReader, parse_records
from dualstream.service.codecs.row_buffer import RowArrays
from dualstream.service.codecs.row_schema import BadRow, RowSchema
from dualstream.solvers.text import LINE_FEED, POWERS_OF_TEN, read_samples


def parse_ndjson(door: RowSchema, body: bytes, labelled: bool) -> ParsedRows:
    """Rows of NDJSON. A line that does not parse is a bad row; blank lines are none."""
    reader = SampleReader(door, body, labelled)
    return parse_records(door, labelled, reader, read_usual, reader.most_entries)


class SampleReader(LineReader):
    """Any sample that a line of JSON can hold."""

    def __init__(self, door: RowSchema, body: bytes, labelled: bool) -> None:
        super().__init__(body)
        self._is_hashed = door.is_hashed
        self._labelled = labelled

    def most_entries(self) -> int:
        """A feature by name is `"":0` at least, and one of a list a digit and its comma."""
        return len(self.body) // (4 if self._is_hashed else 2) + 1

    def take(self, build: IntakeBuilder, place: int, start: int, end: int) -> None:
        sample = read_sample(self.body[start:end], self._is_hashed)
        y = None if sample.y is UNSET else sample.y
        if self._labelled and sample.y is UNSET:
            raise BadRow("/y", "the label is missing")
        weight = 1.0 if sample.weight is UNSET else sample.weight
        build.take(place, sample.x, y, weight, None if sample.id is UNSET else sample.id)


def read_usual(a: RowArrays, text: np.ndarray, ascii_only: bool) -> bool:
    """The kernel of this format; see records.Kernel."""
    return bool(
        read_samples(
            text, ascii_only, LINE_FEED, a.dim, a.label_kind, a.is_telling, POWERS_OF_TEN,
            a.indptr, a.indices, a.values, a.labels, a.weights, a.places, a.spare, a.held,
            a.told, a.seen, a.name_places, a.name_ends, a.names, a.counts,
            a.label_slots, a.label_ends, a.label_text, a.buffer, a.memo, a.at,
        )
    )  # fmt: skip
