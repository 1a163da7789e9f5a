"""Messages as rows: columns from key, timestamp and headers, and what is refused."""

import gzip
import json
import random

import msgspec
import pytest

from dualstream.client import BadInput
from dualstream.consume.reader import Message
from dualstream.consume.rows import BadMessage, RowLines, parse_columns

SOURCE = "kafka/clicks/0"


def line(value: bytes | None, *columns: str, **options) -> bytes:
    options.setdefault("headers", [("tenant", b"first"), ("tenant", b"acme"), ("empty", None)])
    message = Message(SOURCE, 7, value, **{"key": b"ann", "timestamp_ms": 1715000000123} | options)
    return RowLines(parse_columns(columns)).line(message)


def test_a_row_is_sent_as_it_is():
    """Also its numbers: 2^53 + 1 would lose digits as a float, and the server says so."""
    value = b' {"x": {"a": 9007199254740993, "b": 1.50}, "y": 1}'
    assert line(value) == value.strip()


def test_a_row_of_several_lines_becomes_one_line():
    value = b'{\r\n "a": 1.50,\n "b": [1,\n 2]}'
    assert b"\n" not in line(value)
    assert line(value) == b'{"a":1.50,"b":[1,2]}'
    assert b"\n" not in line(value, "key=user") and b"1.50" in line(value, "key=user")


def test_the_quick_check_accepts_what_a_parser_accepts():
    """Rows with a byte replaced, removed or inserted, against msgspec's decoder of any value."""
    chance, accepted = random.Random(1), 0
    whole = ['{"x": {"a": 1.5e-3, "b": [true, null]}, "y": "\\u00e9\\n"}', '{"ü": "€😀", "y": 0}']
    for _ in range(20_000):
        text = bytearray(chance.choice(whole).encode())
        for _ in range(chance.randint(0, 2)):
            at, size = chance.randrange(len(text)), chance.choice([0, 1, 1])
            text[at : at + size] = chance.choice(
                [b"", b'"', b"{", b"0", b"\\", b"\xc3", b" ", b"}"]
            )
        value = bytes(text)
        try:
            is_row = type(msgspec.json.decode(value)) is dict
        except (msgspec.DecodeError, UnicodeDecodeError):
            is_row = False
        try:
            line(value)
        except BadMessage as bad:
            assert not is_row, value
            assert "got dict" not in str(bad)
        else:
            assert is_row, value
        accepted += is_row
    assert 5_000 < accepted < 15_000


def test_json_with_the_header_of_a_schema_registry_is_a_row():
    assert line(b'\0\0\0\0\x07 {"a": "\xc3\xa9"}') == '{"a": "é"}'.encode()
    assert json.loads(line(b'\0\0\0\0\x07{"a": 1}', "key=user")) == {"a": 1, "user": "ann"}


def test_what_is_no_row_is_named(subtests):
    for value, reason in [
        (
            b"\0\0\0\x01\x07\x02\x08ann",
            "Avro or Protobuf of a schema registry (schema 263); write J",
        ),
        (b'\0\0\0\0\x07[{"a": 1}]', "Avro or Protobuf of a schema registry (schema 7); write JSON"),
        (b'\0\0\0\0\x07{"a": tru}', "after the header of a schema registry: not JSON: "),
        (
            b'\0\0\0\0\x07{"a": "\xff"}',
            "after the header of a schema registry: not JSON: not UTF-8 (byte 7)",
        ),
        (b"\0\0\0\0\x07", "not JSON: JSON is malformed: invalid character (byte 0)"),
        (gzip.compress(b'{"a": 1}'), "the value begins with the header of gzip; write plain JSON"),
        (b"\x28\xb5\x2f\xfd\x04", "the value begins with the header of zstd; write"),
        (b'\xef\xbb\xbf{"a": 1}', "the value begins with a byte order mark; write plain JSON"),
        ('{"a": 1}'.encode("utf-16"), "the value begins with the byte order mark of UTF-16"),
        (b'{"a": 1, "b": "xyz\xff"}', "not JSON: not UTF-8 (byte 18)"),
        (b'{"a": "\\ud800"}', "not JSON: \\ud800 is half of a surrogate pair (byte 7); send the"),
        (b'{"a": "\\ud83d\\ude00", "b": "', "not JSON: Input data was truncated"),
    ]:
        with subtests.test(value=value, reason=reason):
            with pytest.raises(BadMessage) as bad:
                line(value)
            assert str(bad.value).startswith(reason)


def test_fields_become_columns_of_a_flat_row():
    inputs = ("key=user", "headers.tenant=tenant", "timestamp=at", "offset=n", "headers.empty=none")
    assert json.loads(line(b'{"clicked": 1}', *inputs)) == {
        "clicked": 1,
        "user": "ann",
        "tenant": "acme",
        "at": "2024-05-06T12:53:20.123+00:00",
        "n": 7,
    }


def test_fields_become_features_next_to_x():
    inputs = ("key=id", "headers.tenant=tenant")
    row = json.loads(line(b'{"x": {"a": 1}, "y": 0}', *inputs))
    assert row == {"x": {"a": 1, "tenant": "acme"}, "y": 0, "id": "ann"}
    assert json.loads(line(b'{"x": [1, 2], "y": 0}', "key=id")) == {
        "x": [1, 2],
        "y": 0,
        "id": "ann",
    }


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (b'{"a": 1.50, "a": 2}', b'{"user":"ann","a": 1.50, "a": 2}'),
        (b" {}", b'{"user":"ann"}'),
        (b'{"x": {"a": 1.50, "a": 2}, "y": 1}', b'{"x": {"user":"ann","a": 1.50, "a": 2}, "y": 1}'),
        (b'{"x": {"x": {"b": 1}}}', b'{"x": {"user":"ann","x": {"b": 1}}}'),
        (b'{"\\u0078":{},"x" : {"b": 1}}', b'{"\\u0078":{},"x" : {"user":"ann","b": 1}}'),
        (b'{"\\u0078": {"b": 1}}', b'{"\\u0078": {"user":"ann","b": 1}}'),
    ],
)
def test_the_text_of_a_row_stays_as_it_is(value, sent):
    """Numbers keep their digits, and the server refuses a name that is repeated."""
    assert line(value, "key=user") == sent


def test_a_message_without_the_field_has_no_such_column():
    assert json.loads(line(b"{}", "key=user", "headers.no=no", key=None)) == {}


@pytest.mark.parametrize(
    ("value", "columns", "given", "reason"),
    [
        (None, (), {}, "tombstone"),
        (b"", (), {}, "the message is empty"),
        (b" \n", (), {}, "the message is empty"),
        (b'{"a": NaN}', (), {}, "not JSON"),
        (b"\xff", (), {}, "not JSON"),
        (b'{"a": "\xff"}', (), {}, "not JSON"),
        (b"[" * 100_000, (), {}, "not JSON"),
        (b"1", (), {}, "a row must be a JSON object, got int"),
        (b'{"user": 1}', ("key=user",), {}, "the row has the column 'user' already"),
        (b'{"x": {"user": 1}}', ("key=user",), {}, "the row has the column 'user' already"),
        (b'{"x": [1]}', ("key=user",), {}, "x is a list, which takes no column 'user'"),
        (b"{}", ("key=user",), {"key": b"\xff"}, "the key of the message is not UTF-8"),
    ],
)
def test_bad_messages_have_a_reason(value, columns, given, reason):
    with pytest.raises(BadMessage, match=reason):
        line(value, *columns, **given)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (["key"], "FIELD=COLUMN"),
        (["key="], "FIELD=COLUMN"),
        (["value=a"], "the field must be key, timestamp, offset or headers.NAME"),
        (["headers.=a"], "the field must be"),
        (["key=a", "offset=a"], "the column 'a' is given already"),
    ],
)
def test_bad_columns_are_refused(columns, reason):
    with pytest.raises(BadInput, match=reason):
        parse_columns(columns)
