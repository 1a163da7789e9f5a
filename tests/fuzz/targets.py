"""The readers that are fuzzed, by name, and the files whose ways each input is to open."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.fuzz import store_targets as store, text_targets as text

Input = Callable[[bytes], None]
_SLOW = ("service/codecs/door.py", "service/codecs/intake.py")
_ROWS = (
    *_SLOW,
    "service/codecs/records.py",
    "service/codecs/row_arrays.py",
    "solvers/text/_read.py",
)
_CODEC = ("_decode.py", "_parts.py", "_kernels.py", "_merge.py", "_encode.py", "_format.py")


@dataclass(frozen=True)
class Target:
    """A reader: what is done with an input, and the files that it is made of.

    `one_input` raises for whatever is neither a result that holds nor a documented refusal.
    """

    one_input: Input
    files: Sequence[str]


TARGETS = {
    "libsvm": Target(text.libsvm, ("solvers/libsvm.py", "service/codecs/libsvm.py")),
    "ndjson": Target(
        text.ndjson,
        (*_ROWS, "service/codecs/ndjson.py", "solvers/text/_json.py", "solvers/text/_memo.py"),
    ),
    "csv": Target(text.csv, (*_ROWS, "service/codecs/csv_rows.py", "solvers/text/_csv.py")),
    "vw": Target(text.vw, (*_ROWS, "service/codecs/vw.py", "solvers/text/_vw.py")),
    "json": Target(text.json, ("service/codecs/json_rows.py", *_SLOW)),
    "arrow": Target(
        text.arrow,
        (
            *_ROWS,
            "service/codecs/arrow_rows.py",
            "service/cuts/arrow_messages.py",
        ),
    ),
    "inflation": Target(text.inflation, ("service/codecs/inflate.py",)),
    "cutting": Target(
        text.cutting,
        (
            "service/cuts/chunks.py",
            "service/cuts/quotes.py",
            "service/cuts/arrow_messages.py",
        ),
    ),
    "messages": Target(
        store.messages,
        ("service/codecs/messages.py", "service/codecs/query.py", "service/codecs/texts.py"),
    ),
    "late_labels": Target(store.late_labels, ("service/api/labels.py",)),
    "record": Target(store.record, tuple(f"service/journal/{name}" for name in _CODEC)),
    "snapshot": Target(store.snapshot, ("solvers/state.py", "service/states.py")),
}
