"""NDJSON codec (application/x-ndjson): one sample per line."""

import numpy as np

from dualstream.service.codecs.json_exact import read_sample
from dualstream.service.codecs.parsed_rows import ParsedRows, RowsBuilder
from dualstream.service.codecs.record_reader import Reader, parse_records
from dualstream.service.codecs.row_buffer import RowArrays
from dualstream.service.codecs.row_schema import RowSchema
from dualstream.solvers.rows.text.json import LINE_FEED, read_samples


def parse_ndjson(schema: RowSchema, body: bytes, labelled: bool) -> ParsedRows:
    """Parse NDJSON. A line that is not valid is a row error; blank lines are skipped."""
    return parse_records(SampleReader(schema, body, labelled))


class SampleReader(Reader):
    """Reader of NDJSON lines."""

    def max_entries(self) -> int:
        # `"":0` per named feature, a digit and a comma in a list.
        return len(self.body) // (4 if self.schema.is_hashed else 2) + 1

    def add_row(self, builder: RowsBuilder, index: int, start: int, end: int) -> None:
        sample = read_sample(self.body[start:end])
        builder.add(index, sample.x, sample.y, sample.weight, sample.id)

    def run_kernel(self, a: RowArrays, text: np.ndarray, ascii_only: bool) -> bool:
        return bool(
            read_samples(
                text, ascii_only, LINE_FEED, a.dim, a.label_kind, a.collects_names, *a.arguments,
                a.row_indices, a.memo, a.at,
            )
        )  # fmt: skip
