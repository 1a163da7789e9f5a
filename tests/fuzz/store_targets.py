"""Fuzzing targets for bytes from a store and for messages of producers."""

import hashlib
import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from google_crc32c import value as crc32c

from dualstream.consume.entries import EntryLines
from dualstream.consume.reader import Message
from dualstream.consume.rows import BadMessage
from dualstream.service.api.late_labels import _LabelRequest
from dualstream.service.codecs import as_batch, parse_body, parse_query_row
from dualstream.service.codecs.row_schema import BadRow
from dualstream.service.codecs.text_fields import feature_of, label_of, weight_of
from dualstream.service.features import ALL
from dualstream.service.journal.record import (
    Control,
    RecordError,
    Rows,
    decode,
    decode_merged,
    encode_control,
    encode_opening,
    encode_rows,
    format as f,
)
from dualstream.service.replica.state import ModelState, by_prefix, read_state
from dualstream.solvers import (
    Batch,
    CorruptState,
    dump,
    load,
    make_learner,
    numeric_identity,
    resolve_spec,
)
from dualstream.wire.problem_json import Problem
from tests.service.codecs.line_strategies import SCHEMAS
from tests.service.journal.support import assert_merged, assert_same, same_bits

SMALL = {"features": {"kind": "indexed", "dim": 3}}
PAIR = [{"algorithm": "perceptron"}, {"algorithm": "ogd"}]
SPECS = [
    resolve_spec(SMALL | given)
    for given in (
        {"algorithm": "dual_ascent", "loss": "hinge", "retain": 4},
        {"algorithm": "rda_plus", "retain": 4},
        {"algorithm": "perceptron", "task": "multiclass"},
        {"algorithm": "portfolio", "members": PAIR, "retain": 4},
    )
]
INCARNATION = "0" * 32
for _spec in SPECS:  # compile its kernels before any input is timed
    make_learner(_spec)


def sealed(body: bytes) -> bytes:
    """The body with correct checksums of its parts, so that damage passes them."""
    out, at = bytearray(body), 0
    while at + 11 <= len(out):
        wide = out[at + 1] & f.WIDE
        length = int.from_bytes(out[at + 4 : at + (8 if wide else 6)], "little")
        end = at + length - 4
        if length < 11 or end + 4 > len(out):
            break
        out[end : end + 4] = crc32c(bytes(out[at:end])).to_bytes(4, "little")
        at = end + 4
    return bytes(out)


def record(data: bytes) -> None:
    """Decoded rows are bounded by the bytes, equal when merged, and encode to the same bytes."""
    body = data[1:] if data[:1] < b"\x20" else sealed(data[1:])
    try:
        parts = decode(body)
    except RecordError as error:
        try:
            decode_merged(body)
        except RecordError as other:
            assert type(other) is type(error), (other, error)
            return
        raise AssertionError(f"decoded merged and part by part: {error}") from None
    assert_merged(body)
    _, blocks = decode_merged(body)
    for block in blocks:
        if isinstance(block, Rows):
            check_rows(block)
            assert len(block) <= len(body) and len(block.indices) <= len(body)
    for header, content in parts:
        fields: dict[str, Any] = {
            "key": header.key,
            "fingerprint": header.fingerprint,
            "continues": header.continues,
        }
        if isinstance(content, Control):
            again = encode_control(content.kind, content.fields, content.arrays, **fields)
            ((_, same),) = decode(again)
            assert isinstance(same, Control) and same_bits(same.fields, content.fields)
            assert same.arrays.keys() == content.arrays.keys()
        elif content is not None:
            columns = {name: getattr(content, name) for name in _COLUMNS}
            again = encode_rows(
                content.indptr, content.indices, content.values, **columns, **fields
            )
            ((head, rows),) = decode(again)
            assert head == header and isinstance(rows, Rows)
            assert_same(rows, _usual(content))
        elif header.key is not None and header.fingerprint is not None:
            encode_opening(header.key, header.fingerprint)


_COLUMNS = ("labels", "weights", "ids", "served_scores", "served_seqs", "served_parts", "names")


def _usual(rows: Rows) -> Rows:
    """The encoder leaves out weights that are all 1."""
    if rows.weights is None or not (rows.weights == 1.0).all():
        return rows
    return Rows(
        *(rows.indptr, rows.indices, rows.values, rows.labels, None, rows.ids),
        *(rows.served_scores, rows.served_seqs, rows.names),
        served_parts=rows.served_parts,
    )


def check_rows(rows: Rows) -> None:
    """Layout of rows; values are unchecked here, because applying checks them."""
    assert rows.indptr[0] == 0 and rows.indptr[-1] == len(rows.indices) == len(rows.values)
    assert (np.diff(rows.indptr) >= 0).all()
    assert not len(rows.indices) or rows.indices.min() >= 0
    for name in ("labels", "weights", "ids", "served_scores", "served_seqs", "served_parts"):
        column = getattr(rows, name)
        assert column is None or len(column) == len(rows)


def snapshot(data: bytes) -> None:
    """Bytes are refused or are a state, which encodes to the same bytes."""
    spec, content = SPECS[(data[0] if data else 0) % len(SPECS)], data[1:]
    if data[:1] >= b"\x10":
        content = signed(content)
    try:
        arrays, metadata = load(content)
    except CorruptState:
        return
    again, same = load(dump(arrays, metadata))
    assert same == metadata and {n: a.tobytes() for n, a in again.items()} == {
        n: a.tobytes() for n, a in arrays.items()
    }
    try:
        arrays, _, _ = read_state(content, INCARNATION, any_identity=True)
        state = ModelState.new(spec, ALL.parts)
        state.restore(by_prefix(arrays))
    except CorruptState:
        return
    state.arrays()


def signed(content: bytes) -> bytes:
    """Bytes of a state with the correct digest, if they have a header."""
    length = int.from_bytes(content[:8], "little")
    try:
        header = json.loads(content[8 : 8 + length])
        metadata = header["__metadata__"]
        metadata["sha256"] = "0" * 64
        metadata["dualstream_format"] = "1"
    except (ValueError, KeyError, TypeError):
        return content
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head, rest = len(text).to_bytes(8, "little") + text, content[8 + length :]
    digest = hashlib.sha256(head + rest).hexdigest()
    return head.replace(b"0" * 64, digest.encode(), 1) + rest


def snapshots() -> list[bytes]:
    """A snapshot of each model, after some rows."""
    rows = Batch.from_dense(
        [[1.0, 0, 0.5], [0, 2.0, 0], [1.0, 1.0, 1.0]], [1.0, -1.0, 1.0], [1.0, 1.0, 2.0]
    )
    results = []
    for index, spec in enumerate(SPECS):
        state = ModelState.new(spec, ALL.parts)
        batch = rows
        if spec["task"] == "multiclass":
            batch = rows.with_labels(np.array([0.0, 1.0, 0.0]), ("a", "b"))
        outcome = state.learner.learn(batch)
        state.progress.count(batch, outcome)
        header = {"seq": "3", "chain": "0" * 40, "incarnation": INCARNATION}
        content = dump(state.arrays(), header | {"identity": numeric_identity()})
        results += [bytes((index + add,)) + content for add in (0, 16 * len(SPECS))]
    return results


def messages(data: bytes) -> None:
    """Fields of an entry of a Redis stream, and texts of a query."""
    schema, texts = SCHEMAS[(data[0] if data else 0) % len(SCHEMAS)], data[1:].split(b"\0")
    names = [name.decode(errors="surrogateescape") for name in texts[::2]]
    fields = list(zip(names, texts[1::2], strict=False))
    for case in (fields, fields[:2]):
        try:
            line = EntryLines().line(Message("redis/s", 1, None, headers=case, id="0-1"))
        except BadMessage as bad:
            str(bad).encode()  # a reason can be written
            continue
        parsed = parse_body(schema, "application/x-ndjson", line, labelled=True)
        assert parsed.count == 1
        b = as_batch([parsed.rows])
        Batch(b.indptr, b.indices, b.values, b.labels, b.weights, b.dim, b.classes)
    for text in (text.decode(errors="replace") for text in texts):
        for read in (partial(feature_of, "a"), weight_of, partial(label_of, is_named=False)):
            try:
                read(text)
            except BadRow:
                pass
        try:
            parse_query_row(schema, text)
        except Problem as problem:
            assert problem.status == 422


def late_labels(data: bytes) -> None:
    """Body of a request with late labels."""
    model = SimpleNamespace(row_schema=SCHEMAS[(data[0] if data else 0) % len(SCHEMAS)])
    try:
        request = _LabelRequest(model, data[1:], False)  # type: ignore[arg-type]
    except Problem as problem:
        assert problem.status in (400, 422), problem
        return
    for label in request.labels:
        assert np.isfinite(label.y) and label.key and len(label.fingerprint) == 16
