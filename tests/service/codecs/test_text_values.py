"""One meaning of a text in every format: a number, a boolean, a category, absent, or refused."""

import json
import math
import re

import pyarrow as pa
import pytest

from dualstream.client import BadInput
from dualstream.consume.entries import EntryLines
from dualstream.consume.reader import Message
from dualstream.consume.rows import BadMessage
from dualstream.service.cli.rows import _texts, _values
from dualstream.service.codecs import as_batch, parse_body, parse_named_row, parse_query_row
from dualstream.solvers.rows.hashing import hash_names
from dualstream.wire.problem_json import Problem
from tests.service.codecs.support import HASHED, INDEXED, schema_of, stream_of

CSV, VW, LIBSVM, NDJSON = "text/csv", "text/x-vw", "text/x-libsvm", "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
ABSENT, REFUSED = "(absent)", "(refused)"

NUMBERS = {
    "5": 5, ".5": 0.5, "5.": 5, "+5": 5, "-.5": -0.5, "+1.0": 1, "1e5": 1e5, "-0": 0, "0.1": 0.1,
    "1E-3": 1e-3, "9007199254740992": 2.0**53, "9007199254740993.": 2.0**53, "1e17": 1e17,
}  # fmt: skip
TEXTS = [
    "05", "02134", "-05", "00", "1_000", "0x1F", "1e", ".", "-", "+", "e5", "--1", "1.2.3", "1,234",
    "nano", "info", "infinit", "+4 7", "2024-01-05", "null", "None", "１",
]  # fmt: skip
NOT_FINITE = ["nan", "NaN", "NAN", "-nan", "inf", "+Inf", "Infinity", "-Infinity", "INFINITY"]
TOO_LARGE = ["1e400", "-1e400", "1e101", "9" * 400]
TOO_LONG = ["9007199254740993", "-9007199254740993", "9223372036854775809", "1" + "0" * 60]
BOOLEANS = dict.fromkeys(["true", "True", "TRUE"], 1) | dict.fromkeys(
    ["false", "False", "FALSE"], 0
)
TABLE: dict[str, float | str] = {
    **NUMBERS,
    **{f" {text}": value for text, value in list(NUMBERS.items())[:4]},
    **BOOLEANS,
    **{text: f"a={text}" for text in [*TEXTS, "tRUE", "  ", "Oslo", " x "]},
    **dict.fromkeys([*NOT_FINITE, *TOO_LARGE, *TOO_LONG], REFUSED),
    "": ABSENT,
}
"""Text -> the value of a feature `a`, or the feature itself."""


def features(parsed) -> float | str:
    """What the text of feature `a` became, in the only row; `b` is 1 for comparison."""
    if parsed.errors:
        assert len(parsed.errors) == 1 and not len(parsed.rows), parsed.errors
        error = parsed.errors[0]
        assert error.index == 0 and ("/x" in error.pointer or "1:" in error.reason), error
        return REFUSED
    batch = as_batch([parsed.rows])
    row = dict(zip(batch.indices.tolist(), batch.values.tolist(), strict=True))
    for text in TABLE.values():
        if isinstance(text, str) and int(hash_names([text], 20)[0]) in row:
            return text
    return row.get(int(hash_names(["a"], 20)[0]), 0)


SPEC = HASHED | {"features": {"kind": "hashed", "bits": 20}}


def of_problem(call) -> float | str:
    try:
        return features(call())
    except Problem as problem:
        assert problem.status == 422 and problem.errors, problem
        return REFUSED


def in_csv(text: str, filler: int = 0) -> float | str:
    field = '"' + text.replace('"', '""') + '"'
    body = f"a,b,y\n{field},1,1\n" + "1,1,1\n" * filler
    parsed = parse_body(schema_of(SPEC), CSV, body.encode(), labelled=True)
    if filler and not parsed.errors:
        batch = as_batch([parsed.rows]).take([0])
        parsed.rows, parsed.row_indices = batch, [0]
    elif filler:
        parsed.rows, parsed.row_indices = as_batch([parsed.rows]).take([]), []
    return features(parsed)


def of_entry(spec, fields: dict[str, str]):
    """Fields of an entry of a Redis stream. Raises BadMessage."""
    pairs = [(name, text.encode()) for name, text in fields.items()]
    line = EntryLines().line(Message("redis/s", 1, None, headers=pairs, id="0-1"))
    return parse_body(schema_of(spec), NDJSON, line, labelled=True)


def in_entry(text: str) -> float | str:
    try:
        return features(of_entry(SPEC, {"y": "1", "x.a": text}))
    except BadMessage:
        return REFUSED


def in_command(text: str) -> float | str:
    try:
        body = json.dumps({"x": _values(_texts([f"a={text}"])), "y": 1}).encode()
    except BadInput:
        return REFUSED
    return features(parse_body(schema_of(SPEC), None, body, labelled=True))


READERS = {
    "csv": in_csv,
    "csv by kernel": lambda text: in_csv(text, 2000),
    "query": lambda text: of_problem(lambda: parse_named_row(schema_of(SPEC), {"a": text})),
    "entry": in_entry,
    "command": in_command,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_text_has_one_meaning_as_a_feature(reader):
    result = {text: READERS[reader](text) for text in TABLE}
    # An absent feature and a zero are the same row.
    expected = {text: 0 if value == ABSENT else value for text, value in TABLE.items()}
    assert result == expected


def body_of(media: str, body: str, spec=INDEXED):
    return parse_body(schema_of(spec), media, body.encode(), labelled=True)


def first_value(parsed) -> float | str:
    if parsed.errors:
        return REFUSED
    values = as_batch([parsed.rows]).values.tolist()
    return values[0] if values else 0.0


def weight_in(parsed) -> float | str:
    return REFUSED if parsed.errors else as_batch([parsed.rows]).weights.tolist()[0]


def query_value(text: str) -> float | str:
    try:
        return first_value(parse_query_row(schema_of(INDEXED), f"1:{text}"))
    except Problem:
        return REFUSED


def entry_value(text: str) -> float | str:
    try:
        return first_value(of_entry(INDEXED, {"y": "1", "x": f"1:{text}"}))
    except BadMessage:
        return REFUSED


NUMERIC = {
    "vw": lambda text: first_value(body_of(VW, f"1 | 1:{text}")),
    "libsvm": lambda text: first_value(body_of(LIBSVM, f"1 1:{text}")),
    "query": query_value,
    "entry": entry_value,
    "csv": lambda text: first_value(body_of(CSV, f'1,2,y\n"{text}",,1')),
}


@pytest.mark.parametrize("place", NUMERIC)
def test_a_text_has_one_meaning_where_only_a_number_can_be(place):
    texts = [text for text in TABLE if text.strip() and not re.search("[ ,:]", text)]
    texts = [text for text in texts if place == "csv" or text not in BOOLEANS]
    result = {text: NUMERIC[place](text) for text in texts}
    assert result == {
        text: value if isinstance(value := TABLE[text], int | float) else REFUSED for text in texts
    }


@pytest.mark.parametrize("media", [CSV, VW])
def test_a_weight_is_the_same_number(media):
    row = {CSV: 'weight,a,y\n"{}",1,1', VW: "1 {} | a"}[media]
    for text in [*NUMBERS, *TEXTS, *NOT_FINITE, "1e400"]:
        if re.search("[ ,]", text):
            continue
        result = weight_in(body_of(media, row.format(text), SPEC))
        number = NUMBERS.get(text, -1)
        assert result == (number if number >= 0 else REFUSED), text


LABELS = {
    "+1": 1, "1.0": 1, "1.": 1, "+1.0": 1, "0": -1, "-1": -1, "True": 1, "TRUE": 1, "False": -1,
    ".5": REFUSED, "01": REFUSED, "nan": REFUSED, "yes": REFUSED,
}  # fmt: skip


@pytest.mark.parametrize("media", [CSV, VW, LIBSVM])
def test_a_label_is_the_same_label(media):
    row = {CSV: "y,1\n{},1", VW: "{} | 1:1", LIBSVM: "{} 1:1"}[media]
    for text, label in LABELS.items():
        parsed = body_of(media, row.format(text))
        assert (REFUSED if parsed.errors else parsed.labels[0]) == label, text
    spec = INDEXED | {"task": "multiclass", "loss": "hinge"}
    same = {"1.0": 1, "+1": 1, "True": True, "01": "01", "x": "x", "9007199254740993": 2**53 + 1}
    for text, label in same.items():
        expected = parse_body(
            schema_of(spec), None, json.dumps({"x": {"1": 1}, "y": label}).encode(), labelled=True
        )
        assert body_of(media, row.format(text), spec).labels == expected.labels, text
    spec = INDEXED | {"task": "regression", "loss": "squared"}
    for text, value in {**NUMBERS, **dict.fromkeys([*NOT_FINITE, *TOO_LONG], REFUSED)}.items():
        parsed = body_of(media, row.format(text), spec)
        assert (REFUSED if parsed.errors else parsed.labels[0]) == value, text


def in_json(value: str, media: str | None, filler: int, spec=SPEC):
    row = f'{{"x": {{"a": {value}}}, "y": 1}}'
    rows = [row, *['{"x": {"a": 1}, "y": 1}'] * filler]
    if media == NDJSON:
        body = "\n".join(rows)
    elif media == "columns":
        ones = ", ".join("1" for _ in rows)
        body = f'{{"x": [{", ".join(r[6:-9] for r in rows)}], "y": [{ones}]}}'
    else:
        body = "[" + ", ".join(rows) + "]"
    return parse_body(
        schema_of(spec), media if media == NDJSON else None, body.encode(), labelled=True
    )


@pytest.mark.parametrize("filler", [0, 2000])
@pytest.mark.parametrize("media", [NDJSON, "columns", "list"])
def test_an_integer_beyond_2_to_the_53rd_is_refused_by_name(media, filler):
    for text in TOO_LONG:
        error = in_json(text, media, filler).errors[0]
        assert error.index == 0 and error.pointer.endswith("/a"), error
        assert "as a text" in error.reason
    for text in ("9007199254740992", "9007199254740993.0", "1e17"):
        parsed = in_json(text, media, filler)
        assert not parsed.errors
        assert as_batch([parsed.rows]).values.tolist()[0] == float(text)


def test_an_integer_column_beyond_2_to_the_53rd_is_refused_row_by_row():
    for kind in (pa.int64(), pa.uint64(), pa.dictionary(pa.int8(), pa.int64())):
        table = pa.table({"a": pa.array([1, 2**53, 2**53 + 1, 2**53 + 2], kind), "y": [1, 0, 1, 0]})
        parsed = parse_body(schema_of(SPEC), ARROW, stream_of(table), labelled=True)
        assert list(parsed.row_indices) == [0, 1]
        assert [(e.index, e.pointer) for e in parsed.errors] == [(2, "/x/a"), (3, "/x/a")]
    floats = pa.table({"a": [1e17], "y": [1]})
    assert not parse_body(schema_of(SPEC), ARROW, stream_of(floats), labelled=True).errors


def test_a_feature_without_a_name_is_refused_in_every_format():
    def refusal(call) -> str:
        try:
            parsed = call()
        except Problem as problem:
            return problem.detail
        assert len(parsed.errors) == 1 and not len(parsed.rows)
        return parsed.errors[0].reason

    def read(media, body, schema=None):
        return parse_body(schema or schema_of(SPEC), media, body, labelled=True)

    previous = schema_of(SPEC)
    previous.mark_journalled([(3, ""), (4, "=Oslo")])  # by an earlier release
    for schema in (schema_of(SPEC), previous):
        for value in ("1", '"Oslo"', "true"):
            line = f'{{"x": {{"": {value}}}, "y": 1}}'.encode()
            for media, body in ((None, line), (NDJSON, line), (None, b"[" + line + b"]")):
                assert "no name" in refusal(lambda m=media, b=body, s=schema: read(m, b, s))
    many = b"\n".join([b'{"x": {"": 1, "b": 2}, "y": 1}', *[b'{"x": {"b": 2}, "y": 1}'] * 500])
    assert [error.index for error in read(NDJSON, many).errors] == [0]
    assert "no name" in refusal(lambda: read(CSV, b",a,y\n0,1,1"))
    assert "no name" in refusal(lambda: read(VW, b"1 | :1"))
    table = pa.table([[1.0], [1]], ["", "y"])
    assert "no name" in refusal(lambda: read(ARROW, stream_of(table)))
    assert "no name" in refusal(lambda: parse_named_row(schema_of(SPEC), {"": "1"}))
    assert "no name" in refusal(lambda: of_entry(SPEC, {"x.": "1", "y": "1"}))


CAFE, COMPOSED = "cafe\u0301", "caf\u00e9"


def named_bodies(name: str, text: str) -> dict[str, tuple[str | None, bytes]]:
    row = json.dumps({"x": {name: 1, "city": text}, "y": 1}, ensure_ascii=False)
    rows = "\n".join([row] * 200)
    escaped = json.dumps({"x": {name: 1, "city": text}, "y": 1})
    table = pa.table({name: [1.0], "city": [text], "y": [1]})
    return {
        "json": (None, row.encode()),
        "escaped": (NDJSON, escaped.encode()),
        "ndjson": (NDJSON, rows.encode()),
        "list": (None, f"[{', '.join([row] * 200)}]".encode()),
        "csv": (CSV, f"{name},city,y\n1,{text},1".encode()),
        "csv by kernel": (CSV, (f"{name},city,y\n" + f"1,{text},1\n" * 2000).encode()),
        "vw": (VW, f"1 | {name}:1 city={text}".encode()),
        "arrow": (ARROW, stream_of(table)),
    }


@pytest.mark.parametrize("form", named_bodies("a", "b"))
def test_names_and_categories_are_composed(form):
    media, composed = named_bodies(COMPOSED, COMPOSED)[form]
    _, decomposed = named_bodies(CAFE, CAFE)[form]
    assert composed != decomposed or form == "escaped"

    def rows(body: bytes) -> tuple:
        parsed = parse_body(schema_of(SPEC), media, body, labelled=True)
        assert not parsed.errors
        return as_batch([parsed.rows]).indices.tolist(), set(parsed.names)

    assert rows(decomposed) == rows(composed)
    assert {name for _, name in rows(decomposed)[1]} == {COMPOSED, f"city={COMPOSED}"}


def test_labels_are_composed_and_both_forms_are_one_name():
    spec = SPEC | {"task": "multiclass", "loss": "hinge"}
    for schema in (schema_of(spec), schema_of(SPEC | {"labels": [CAFE, "b"]})):
        assert schema.label(CAFE) == schema.label(COMPOSED)
    row = json.dumps({"x": {CAFE: "a", COMPOSED: "b"}, "y": 1}).encode()
    error = parse_body(schema_of(SPEC), None, row, labelled=True).errors[0]
    assert "duplicated" in error.reason
    with pytest.raises(Problem, match="duplicated"):
        parse_body(schema_of(SPEC), CSV, f"{CAFE},{COMPOSED},y\n1,1,1".encode(), labelled=True)


def test_the_index_of_a_pandas_table_is_no_feature():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": [1, 0, 1]})
    for table in (frame[frame.a != 2], frame, frame.set_index(pd.Index([7, 8, 9], name="user"))):
        stream = stream_of(pa.Table.from_pandas(table))
        parsed = parse_body(schema_of(SPEC), ARROW, stream, labelled=True)
        assert [name for _, name in parsed.names] == ["a"]
        assert len(parsed.rows) == len(table)
    assert math.isclose(as_batch([parsed.rows]).values.sum(), 6)
