"""NDJSON codec (application/x-ndjson): one sample per line."""

import numpy as np
from msgspec import UNSET

from dualstream.service.codecs.json_exact import read_sample
from dualstream.service.codecs.parsed_rows import ParsedRows, RowsBuilder
from dualstream.service.codecs.record_reader import LineReader, parse_records
from dualstream.service.codecs.row_buffer import RowArrays
from dualstream.service.codecs.row_schema import BadRow, RowSchema
from dualstream.solvers.text import LINE_FEED, POWERS_OF_TEN, read_samples


def parse_ndjson(schema: RowSchema, body: bytes, labelled: bool) -> ParsedRows:
    """Parse NDJSON. A line that is not valid is a row error; blank lines are skipped."""
    reader = SampleReader(schema, body, labelled)
    return parse_records(schema, labelled, reader, run_kernel, reader.max_entries)


class SampleReader(LineReader):
    """Exact reader of NDJSON lines."""

    def __init__(self, schema: RowSchema, body: bytes, labelled: bool) -> None:
        super().__init__(body)
        self._is_hashed = schema.is_hashed
        self._labelled = labelled

    def max_entries(self) -> int:
        """Upper bound of features: `"":0` per named feature, a digit and a comma in a list."""
        return len(self.body) // (4 if self._is_hashed else 2) + 1

    def add_row(self, builder: RowsBuilder, index: int, start: int, end: int) -> None:
        sample = read_sample(self.body[start:end], self._is_hashed)
        y = None if sample.y is UNSET else sample.y
        if self._labelled and sample.y is UNSET:
            raise BadRow("/y", "the label `y` is missing")
        weight = 1.0 if sample.weight is UNSET else sample.weight
        builder.add(index, sample.x, y, weight, None if sample.id is UNSET else sample.id)


def run_kernel(a: RowArrays, text: np.ndarray, ascii_only: bool) -> bool:
    """Kernel of this format; see record_reader.Kernel."""
    return bool(
        read_samples(
            text, ascii_only, LINE_FEED, a.dim, a.label_kind, a.collects_names, POWERS_OF_TEN,
            a.indptr, a.indices, a.values, a.labels, a.weights, a.row_indices, a.spare, a.held,
            a.journalled, a.seen, a.name_indices, a.name_ends, a.names, a.counts,
            a.label_slots, a.label_ends, a.label_text, a.buffer, a.memo, a.at,
        )
    )  # fmt: skip
