"""Fuzzing targets by name, and the files whose coverage each input may extend."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.fuzz import store_targets as store, text_targets as text

Input = Callable[[bytes], None]
_SLOW = ("service/codecs/row_schema.py", "service/codecs/parsed_rows.py")
_ROWS = (
    *_SLOW,
    "service/codecs/record_reader.py",
    "service/codecs/row_buffer.py",
    "solvers/rows/text/tokens.py",
)
_CODEC = ("_decode.py", "_parts.py", "_kernels.py", "_merge.py", "_encode.py", "_format.py")


@dataclass(frozen=True)
class Target:
    """A reader: the function that runs an input, and its source files.

    `one_input` raises unless the result is valid or a documented refusal.
    """

    one_input: Input
    files: Sequence[str]


TARGETS = {
    "libsvm": Target(text.libsvm, ("solvers/rows/text/libsvm.py", "service/codecs/libsvm.py")),
    "ndjson": Target(
        text.ndjson,
        (
            *_ROWS,
            "service/codecs/ndjson.py",
            "solvers/rows/text/json.py",
            "solvers/rows/text/name_cache.py",
        ),
    ),
    "csv": Target(text.csv, (*_ROWS, "service/codecs/csv.py", "solvers/rows/text/csv.py")),
    "vw": Target(text.vw, (*_ROWS, "service/codecs/vw.py", "solvers/rows/text/vw.py")),
    "json": Target(text.json, ("service/codecs/json_exact.py", *_SLOW)),
    "arrow": Target(
        text.arrow, (*_ROWS, "service/codecs/arrow.py", "wire/chunking/arrow_messages.py")
    ),
    "inflation": Target(text.inflation, ("service/codecs/decompress.py",)),
    "cutting": Target(text.cutting, ("wire/chunking/chunks.py", "wire/chunking/arrow_messages.py")),
    "messages": Target(
        store.messages,
        ("consume/entries.py", "service/codecs/query.py", "service/codecs/row_schema.py"),
    ),
    "late_labels": Target(store.late_labels, ("service/api/late_labels.py",)),
    "record": Target(store.record, tuple(f"service/journal/{name}" for name in _CODEC)),
    "snapshot": Target(
        store.snapshot, ("solvers/protocols/checksummed_state.py", "service/replica/state.py")
    ),
}
