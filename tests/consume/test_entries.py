"""Ids of Redis entries as offsets, and their fields as rows."""

import json

import pytest
from hypothesis import given, strategies as st

from dualstream.client import BadInput
from dualstream.consume.entries import (
    EntryLines,
    check_columns,
    entry_cursor,
    entry_id,
    entry_offset,
    offset_of,
)
from dualstream.consume.reader import Message
from dualstream.consume.rows import BadMessage

PART = st.integers(0, 2**64 - 1)
FLAT = {"columns": {"label": "clicked"}}


def line(fields, spec=None, **columns: str) -> bytes:
    lines = EntryLines(columns)
    lines.adapt(spec or {})
    pairs = [
        (name, text if isinstance(text, bytes) else text.encode()) for name, text in fields.items()
    ]
    return lines.line(Message("redis/s", 7, None, None, 1715000000123, pairs, "1715000000123-4"))


def refused(fields, spec=None) -> str:
    with pytest.raises(BadMessage) as bad:
        line(fields, spec)
    return str(bad.value)


@given(PART, PART, PART, PART)
def test_offsets_are_ordered_as_ids_and_cursors_are_the_ids_before_them(ms, seq, ms_2, seq_2):
    offset, other = offset_of(f"{ms}-{seq}"), offset_of(f"{ms_2}-{seq_2}")
    assert entry_id(offset) == f"{ms}-{seq}"
    assert (offset < other) == ((ms, seq) < (ms_2, seq_2))
    # After an entry, the cursor is its id.
    assert entry_cursor(offset + 1) == f"{ms}-{seq}"
    assert entry_offset("redis/s", f"{ms}-{seq}") == offset + 1
    assert entry_cursor(0) == "0-0"


def test_a_cursor_that_is_no_id_is_refused_by_name():
    for wrong in (12, "", "5", "-", "1-", "1-2-3", "01-2", "1-٣", "1 -2"):
        with pytest.raises(BadInput, match="the cursor of redis/s is .*not an entry id"):
            entry_offset("redis/s", wrong)


ROWS = [
    ({"json": '{"x": {"a": 1.50}, "y": 1}'}, b'{"x": {"a": 1.50}, "y": 1}'),
    ({"y": "0", "x.site": "mail", "x.price": "2.5"}, {"x": {"site": "mail", "price": 2.5}, "y": 0}),
    (
        {"x.new": "true", "y": "-1", "weight": "2", "x.none": ""},
        {"x": {"new": True}, "y": -1, "weight": 2},
    ),
    (
        {"y": "news", "id": "7", "x.a:b": "1e-3", "x.zip": "02134"},
        {"x": {"a:b": 0.001, "zip": "02134"}, "y": "news", "id": "7"},
    ),
    ({"x": "3:1,5:0.5", "y": "1"}, {"x": {"3": 1, "5": 0.5}, "y": 1}),
    ({"x": "", "y": "+1", "weight": ".5"}, {"x": {}, "y": 1, "weight": 0.5}),
    ({"x": "1:9007199254740993", "y": "9" * 30}, {"x": {"1": 2**53 + 1}, "y": int("9" * 30)}),
    ({"x": "1:1"}, {"x": {"1": 1}}),  # the server refuses it, with its own reason
]


@pytest.mark.parametrize(("fields", "row"), ROWS)
def test_fields_become_a_sample(fields, row):
    result = line(fields)
    assert result == row if isinstance(row, bytes) else json.loads(result) == row


def test_named_labels_stay_texts():
    assert json.loads(line({"x": "", "y": "1"}, {"labels": ["no", "1"]}))["y"] == "1"


def test_fields_of_a_model_with_columns_are_a_flat_row_of_texts():
    """The types of its columns decide, as in CSV."""
    fields = {"clicked": "1", "zip": "02134", "x.a": "1", "y": ""}
    assert json.loads(line(fields, FLAT)) == fields
    assert line({"json": '{"clicked": 1}'}, FLAT) == b'{"clicked": 1}'
    result = json.loads(line({"clicked": "1"}, FLAT, at="timestamp", entry="offset"))
    assert result == {
        "clicked": "1",
        "at": "2024-05-06T12:53:20.123+00:00",
        "entry": "1715000000123-4",
    }


BAD = [
    ({"y": "1"}, "send the features in the field x, or in fields x.NAME"),
    ({"y": "1", "x": "1:1", "x.2": "1"}, "send the features in the field x, or"),
    ({"x": "1", "y": "1"}, "x: '1' is not index:value"),
    ({"x": "1:1,1:2", "y": "1"}, "x: index '1' is used twice"),
    ({"x": "1:word", "y": "1"}, "x: the value of '1' must be a number, got 'word'"),
    ({"x.1": "nan", "y": "1"}, "nan is not a finite number"),
    ({"x": "1:1", "y": "inf"}, "inf is not a finite number"),
    ({"x": "1:1e999", "y": "1"}, "'1e999' is too large for a number"),
    ({"x.1": "9" * 400, "y": "1"}, "'999999"),
    ({"x": "1:1", "y": "1", "weight": "much"}, "weight must be a number, got 'much'"),
    ({"x": "1:1", "y": "1", "colour": "red"}, "unknown field 'colour'; send x.NAME, y, "),
    ({"json": "{", "y": "1"}, "an entry with the field json must have no other field"),
    ({"json": '{"x": [1], "y": 1'}, "not JSON: "),
    ({"json": "[1]"}, "a row must be a JSON object, got list"),
    ({"json": ""}, "the message is empty"),
    ({"x": "1:1", "y": b"\xff"}, "the entry is not UTF-8"),
    ({"x": "1:1", "\udcff": b"1"}, "the entry is not UTF-8"),
]


@pytest.mark.parametrize(("fields", "reason"), BAD)
def test_a_bad_entry_has_its_reason(fields, reason):
    assert refused(fields).startswith(reason)


def test_a_repeated_field_is_refused():
    lines = EntryLines()
    entry = Message("redis/s", 7, None, headers=(("y", b"1"), ("y", b"0"), ("x", b"")), id="0-7")
    for spec in ({}, FLAT):
        lines.adapt(spec)
        with pytest.raises(BadMessage, match="the field 'y' is repeated"):
            lines.line(entry)


NAMES = st.sampled_from(["json", "y", "weight", "id", "x", "x.1", "x.a", "x.", "other", "\udcff"])
VALUES = st.one_of(
    st.binary(max_size=8),
    st.sampled_from(
        [b"1", b"-0.5", b"1e999", b"9" * 5000, b"nan", b"1:1", b"1:", b"true", b"[" * 5000, b"a\nb"]
    ),
)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=5), st.sampled_from([{}, FLAT]))
def test_any_entry_is_one_line_of_json_or_refused(fields, spec):
    lines = EntryLines()
    lines.adapt(spec)
    try:
        result = lines.line(Message("redis/s", 7, None, headers=fields, id="0-7"))
    except BadMessage as bad:
        assert str(bad).encode()
    else:
        assert b"\n" not in result and isinstance(json.loads(result), dict)
        assert b"null" not in result or any(b"null" in value for _, value in fields)


def test_columns_of_kafka_are_refused():
    check_columns({"at": "timestamp", "entry": "offset"})
    with pytest.raises(BadInput, match="--column key=user: an entry of a stream has timestamp and"):
        check_columns({"user": "key"})
