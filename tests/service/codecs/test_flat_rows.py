"""Flat rows of models with `columns`: every format gives the same rows, and the same errors."""

import csv
import io
import json
import re
from datetime import timedelta

import pyarrow as pa
import pytest

from dualstream.consume.entries import EntryLines
from dualstream.consume.reader import Message
from dualstream.service.codecs import as_batch, parse_body, parse_named_row
from dualstream.service.codecs.row_schema import RowSchema
from dualstream.solvers import resolve_spec
from dualstream.wire.problem_json import Problem
from tests.service.codecs.flat_tables import (
    SPEC,
    WITH_HISTORY,
    as_arrow,
    as_csv,
    generated,
    written,
)
from tests.service.codecs.support import ARROW, CSV, NDJSON


def schema_of(spec=SPEC):
    return RowSchema(resolve_spec(spec))


def as_texts(rows):
    return [{n: "" if v is None else str(v) for n, v in row.items()} for row in rows]


def as_entries(rows):
    """Lines of NDJSON, as `dualstream consume` makes them of the fields of Redis entries."""
    lines = EntryLines()
    lines.adapt(SPEC)
    entries = [[(name, text.encode()) for name, text in row.items()] for row in as_texts(rows)]
    made = [Message("redis/s", n, None, headers=one, id=f"0-{n}") for n, one in enumerate(entries)]
    return b"\n".join(map(lines.line, made))


def found(parsed):
    assert not parsed.errors, parsed.errors[:3]
    names: dict[int, str] = {}  # a kernel may leave out names of zeros after their first row
    for index, name in parsed.rows.names:
        names.setdefault(index, name)
    batch = as_batch([parsed.rows])
    return (
        batch.indptr.tolist(),
        batch.indices.tolist(),
        batch.values.tolist(),
        batch.labels.tolist(),
        batch.weights.tolist(),
        parsed.rows.ids,
        list(names.items()),
    )


@pytest.mark.parametrize("spec", [SPEC, WITH_HISTORY])
@pytest.mark.parametrize("seed", range(5))
def test_every_format_gives_the_same_rows(seed, spec):
    rows, schema = generated(seed), schema_of(spec)
    expected = found(parse_body(schema, None, json.dumps(rows).encode(), labelled=True))
    assert len(expected[3]) == len(rows) and len(expected[6]) > 150
    bodies = {
        "samples": (None, json.dumps({"samples": rows}).encode()),
        "explicit": (None, json.dumps([explicit(row) for row in rows]).encode()),
        "ndjson": (NDJSON, "\n".join(map(json.dumps, rows)).encode()),
        "csv": (CSV, as_csv(rows)),
        "tsv": ("text/tab-separated-values", as_tsv(rows)),
        "arrow": (ARROW, as_arrow(rows)),
        "entries": (NDJSON, as_entries(rows)),
    }
    for name, (kind, body) in bodies.items():
        assert found(parse_body(schema, kind, body, labelled=True)) == expected, name
    scored = parse_body(schema, None, json.dumps(rows).encode(), labelled=False)
    for row, texts in zip(rows[:20], as_texts(rows[:20]), strict=True):
        one = parse_named_row(schema, texts)
        at = rows.index(row)
        first, stop = scored.rows.indptr[at : at + 2]
        assert one.rows.indices == list(scored.rows.indices[first:stop])
        assert one.rows.values == list(scored.rows.values[first:stop])


def explicit(row):
    x = {name: value for name, value in row.items() if name not in ("clicked", "event", "cost")}
    return {"x": x, "y": row["clicked"], "id": row["event"], "weight": row["cost"]}


def as_tsv(rows):
    text = as_csv(rows).decode()
    out = io.StringIO()
    csv.writer(out, delimiter="\t").writerows(csv.reader(io.StringIO(text)))
    return out.getvalue().encode()


BAD = [
    ({"price": "cheap"}, "/price", "must be a number, got 'cheap'"),
    ({"member": "perhaps"}, "/member", "must be a boolean"),
    ({"at": "soon"}, "/at", "must be a time"),
    ({"clicked": 7}, "/clicked", "7 is not a label"),
    ({"clicked": [1]}, "/clicked", "must be one value"),
    ({"cost": 10**400}, "/cost", "the weight must be in"),
    ({"cost": [1]}, "/cost", "must be a number, got a list"),
    ({"clicked": None}, "/clicked", "the label column 'clicked' is missing"),
    ({"cost": -1}, "/cost", "the weight must be in"),
    ({"price": 1e300}, "/price", "1e100"),
    ({"score": 2**60}, "/score", "loses digits"),
    ({"zip": "z" * 2000}, "/zip", "at most 1024 characters"),
    ({"event": "e" * 300}, "/event", "an id has 1 to 255 bytes"),
    ({"subject": {"deep": 1}}, "/subject", "must be one value, got an object"),
    ({"user": {"deep": {"er": [[]]}}}, "/user/deep/er", "must be a category"),
    ({"user.deep": {"er": [[]]}}, "/user.deep/er", "must be a category"),
    ({"user": {"deep.er": [[]]}}, "/user/deep.er", "must be a category"),
    ({"user": {"a/b": {"x~y": 10**400}}}, "/user/a~1b/x~0y", "1e100"),
    ({"user": {"age": 1e300}}, "/user/age", "1e100"),
    ({"user": {"age": 1}, "user.age": 2}, "/user/age", "is there twice"),
]


@pytest.mark.parametrize(("change", "pointer", "reason"), BAD)
def test_a_bad_value_refuses_its_row_alone(change, pointer, reason):
    rows = generated(1, 5)
    rows[2] = rows[2] | change
    parsed = parse_body(schema_of(), None, json.dumps(rows).encode(), labelled=True)
    (error,) = parsed.errors
    assert (error.index, error.pointer) == (2, f"/2{pointer}") and reason in error.reason
    assert len(parsed.rows) == 4
    lines = parse_body(
        schema_of(), NDJSON, "\n".join(map(json.dumps, rows)).encode(), labelled=True
    )
    (error,) = lines.errors
    assert (error.line, error.pointer) == (3, pointer)


@pytest.mark.parametrize(
    ("row", "pointer"),
    [
        ({"x": {"price": "cheap"}, "y": 1}, "/x/price"),
        ({"x": {"user": {"age": [[]]}}, "y": 1}, "/x/user/age"),
        ({"x": {"price": 1e300}, "clicked": 1}, "/x/price"),
        ({"x": {"price": 1}, "y": 7}, "/y"),
        ({"x": {"price": 1}, "clicked": 7}, "/clicked"),
        ({"x": {"price": 1, "clicked": 7}}, "/x/clicked"),
        ({"x": {"price": 1}}, "/y"),
        ({"x": {"price": 1}, "y": 1, "weight": -1}, "/weight"),
        ({"x": {"price": 1}, "y": 1, "id": "e" * 300}, "/id"),
        ({"x": {"price": 1}, "y": 1, "z": 1}, "/x"),
    ],
)
def test_an_error_in_a_row_of_explicit_form_points_to_where_it_is(row, pointer):
    (error,) = parse_body(schema_of(), None, json.dumps([row]).encode(), labelled=True).errors
    assert error.pointer == f"/0{pointer}", error.reason
    role = {"/y": "clicked", "/weight": "cost", "/id": "event", "/x/price": "price"}
    counted = schema_of().columns.column_at(error.pointer)
    assert counted == role.get(pointer, "clicked" if "clicked" in pointer else None)


def test_refused_rows_count_for_the_nested_column_that_is_declared():
    reader = schema_of({"columns": {"types": {"user.age": "number"}}}).columns
    assert reader.column_at("/2/user/age") == reader.column_at("/2/x/user.age") == "user.age"
    assert reader.column_at("/2/age") is None and reader.column_at("") is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"clicked": 1, "a": 1, "a": 2}', "'a' is duplicated"),
        (b'{"clicked": 1, "at": "2024-01-01T10:00", "b": {"c": 1, "c": 1}}', "'c' is duplicated"),
        (b'{"clicked": 1, "a:b": ":\\u003a", "c": ":"}', None),
        (b'{"clicked":1,"a":1,"a" :2}', "'a' is duplicated"),
        (b'{"a":1,"clicked":1,"a":"\\u003a"}', "'a' is duplicated"),
        (b'{"clicked": 1, "a": ' + b"9" * 5000 + b"}", "more than 4,300 digits"),
        (b'{"clicked": 1, "a": "\\ud800"}', "half of a surrogate pair (byte 21)"),
        (b'{"x": {"a": 1}, "y": [1]}', "must be one value"),
        (b'{"x": {"a": 1}, "y": 1, "clicked": 0}', "the label is there twice"),
        (b'{"x": {"a": 1, "clicked": 0}, "y": 1}', "the label is there twice"),
        (b'{"x": {"a": 1}, "y": "NA"}', "label column 'clicked' is missing"),
        (b'{"x": {"a": 1}, "z": 1}', "put all columns in `x`"),
        (b'{"clicked": 1, "a": NaN}', "JSON has no NaN"),
        (b"[1, 2]", "must be an object"),
        (b'{"clicked": 1', "truncated"),
    ],
)
def test_a_bad_line_is_refused_alone(body, reason):
    good = b'{"clicked": 0, "a": 1}'
    parsed = parse_body(schema_of(), NDJSON, b"\n".join([good, body, good]), labelled=True)
    assert [reason in error.reason for error in parsed.errors] == ([] if reason is None else [True])
    assert len(parsed.rows) == (3 if reason is None else 2)


@pytest.mark.parametrize("pointer", ["/a", "/a/b~1c", "/tags/1", "/x/a"])
def test_an_integer_that_is_too_long_is_refused_by_its_column(pointer):
    long = b"9" * 5000
    values = {
        "/a": b'{"a": %b, "clicked": 1}' % long,
        "/a/b~1c": b'{"a": {"b/c": -%b}, "clicked": 1}' % long,
        "/tags/1": b'{"tags": ["x", %b], "clicked": 1}' % long,
        "/x/a": b'{"x": {"a": %b}, "y": 1}' % long,
    }
    body = b'[{"clicked": 0, "a": 1}, ' + values[pointer] + b"]"
    parsed = parse_body(schema_of(), None, body, labelled=True)
    assert [one.pointer for one in parsed.errors] == [f"/1{pointer}"] and len(parsed.rows) == 1


@pytest.mark.parametrize(
    ("kind", "body", "status", "reason"),
    [
        (None, b"{", 400, "truncated"),
        (None, b'{"clicked": 1, "a": "\\uDBFF"}', 400, "half of a surrogate pair"),
        (None, b"3", 422, "a row or a list of rows"),
        (None, b'{"samples": [', 400, "truncated"),
        (None, b"\xff", 400, ""),
        (CSV, b"a,a\n1,2\n", 422, "duplicated"),
        (CSV, b"a,\n1,2\n", 422, "no name"),
        ("text/x-libsvm", b"1 1:1\n", 415, "has no columns; send JSON"),
        ("text/x-vw", b"1 | a\n", 415, "has no columns; send JSON"),
        ("text/plain", b"1\n", 415, "not supported"),
    ],
)
def test_a_bad_body_is_refused_as_a_whole(kind, body, status, reason):
    with pytest.raises(Problem) as refused:
        parse_body(schema_of(), kind, body, labelled=True)
    assert refused.value.status == status and reason in refused.value.detail


def test_ten_thousand_columns_and_a_megabyte_of_text():
    wide = {f"c{n}": n for n in range(1, 10_000)} | {"clicked": 1}
    parsed = parse_body(schema_of(), None, json.dumps(wide).encode(), labelled=True)
    assert len(parsed.rows) == 1 and len(parsed.rows.names) == len(parsed.rows.indices) > 9_700
    long = {"clicked": 1, "subject": "word " * 200_000}
    parsed = parse_body(schema_of(), None, json.dumps(long).encode(), labelled=True)
    assert sorted(name for _, name in parsed.rows.names) == ["subject:word", "subject:word word"]
    many = [f"w{n}" for n in range(50_001)]
    for name, value in {
        "subject": " ".join(many),
        "zip": [*many, *map(str, range(50_000))],
    }.items():
        schema = schema_of()
        body = json.dumps({"clicked": 1, name: value}).encode()
        (error,) = parse_body(schema, None, body, labelled=True).errors
        assert error.pointer == f"/{name}" and "more than 100,000 features" in error.reason
        assert not schema.owned_objects()[-4], "names are hashed"
    short = {"clicked": 1, "subject": " ".join(many[:-1])}
    parsed = parse_body(schema_of(), None, json.dumps(short).encode(), labelled=True)
    assert not parsed.errors, "50,000 words and 49,999 pairs"


@pytest.mark.parametrize("name", ["." * 1000, "a" + ".b" * 500])
def test_a_name_of_dots_is_one_column_in_every_format(name):
    columns = {"ignore": ["ip", "*_id"], "types": {"at": "time", "n": "number"}}
    schema = schema_of({"columns": columns})
    rows = [{"y": 1, "n": 2.5}, {"y": 0, "n": 1.5, name: 2.0}, {"y": 1, "n": 0.5}]
    lines = "\n".join(map(json.dumps, rows))
    records = f"y,n,{name}\n1,2.5,\n0,1.5,2.0\n1,0.5,\n"
    table = pa.table({one: [row.get(one) for row in rows] for one in rows[1]})
    results = []
    for kind, body in (
        (NDJSON, lines.encode()),
        (NDJSON, (f"{lines}\n" * 100).encode()),
        ("application/json", json.dumps(rows).encode()),
        (CSV, records.encode()),
        (ARROW, written(table)),
    ):
        parsed = parse_body(schema, kind, body, labelled=True)
        assert not parsed.errors
        batch = as_batch([parsed.rows])
        results.append((batch.indices[:4].tolist(), batch.values[:4].tolist()))
    assert len(results[0][0]) == 4 and all(one == results[0] for one in results)
    one = parse_body(schema, None, json.dumps(rows[1]).encode(), labelled=True)
    assert as_batch([one.rows]).values.tolist() == results[0][1][1:3]


@pytest.mark.parametrize(
    "value",
    [
        "9999-12-31T23:59:59-14:00",
        "0001-01-01T00:00+14:00",
        1e300,
        -1e300,
        10**400,
        2.6e20,
        0,
        1e8 - 1,
    ]
    + [20241399, "0000-01-01", "2024-02-30", "1e400", "inf", "2024-01-01T25:00", True, "24:00"]
    + ["9" * 1_000_000, "x" * 1_000_000],
    ids=lambda value: str(value)[:25],
)
def test_a_time_out_of_range_is_refused_alone(value):
    rows = [{"clicked": 1, "at": "2024-05-06"}, {"clicked": 0, "at": value}, {"clicked": 1}]
    lines = "\n".join(map(json.dumps, rows)).encode()
    parsed = parse_body(schema_of(), NDJSON, lines, labelled=True)
    (error,) = parsed.errors
    assert (error.index, error.pointer) == (1, "/at") and len(error.reason) < 1000
    assert "years 1 to 9999" in error.reason and len(parsed.rows) == 2


@pytest.mark.parametrize("value", ["x" * 1_000_000, "1" * 1_000_000], ids=["letters", "digits"])
@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("price", "number"),
        ("member", "must be a boolean"),
        ("zip", "at most 1024 characters"),
        ("site", "got inf|at most 1024 characters"),
        ("event", "1 to 255 bytes"),
        ("cost", "weight|number"),
        ("clicked", "is not a label"),
    ],
)
def test_a_megabyte_in_one_field_is_refused_shortly(column, reason, value):
    body = f"clicked,n,{'m' if column == 'clicked' else column}\n1,1,\n0,2,{value}\n1,3,\n"
    if column == "clicked":
        body = f"clicked,n\n1,1\n{value},2\n0,3\n"
    parsed = parse_body(schema_of(), CSV, body.encode(), labelled=True)
    (error,) = parsed.errors
    assert error.index == 1 and re.search(reason, error.reason), error.reason
    assert len(error.reason) < 1000 and len(parsed.rows) == 2


def test_a_declared_type_that_changes_in_the_middle_loses_those_rows_alone():
    rows = [
        {"clicked": n % 2, "price": n / 2 if n < 500 else f"EUR {n}", "at": 1_700_000_000 + n}
        for n in range(1000)
    ]
    for row in rows[700:]:
        row["price"] = 1.5
    for row in rows[900:]:
        row["at"] = "yesterday"
    lines = "\n".join(map(json.dumps, rows)).encode()
    for kind, body in ((None, json.dumps(rows).encode()), (NDJSON, lines), (CSV, as_csv(rows))):
        parsed = parse_body(schema_of(), kind, body, labelled=True)
        assert [error.index for error in parsed.errors] == [*range(500, 700), *range(900, 1000)]
        assert {error.pointer.rpartition("/")[2] for error in parsed.errors} == {"price", "at"}
        assert list(parsed.row_indices) == [*range(500), *range(700, 900)]


def test_rows_without_their_label_or_with_too_many_columns_are_refused_each():
    parsed = parse_body(schema_of(), CSV, b"price,zip\n1,2\n3,4\n", labelled=True)
    assert [error.reason for error in parsed.errors] == 2 * [
        "the label column 'clicked' is missing"
    ]
    names = ["clicked", *(f"c{n}" for n in range(10_000))]
    wide = ",".join(names) + "\n" + ",".join("1" for _ in names) + "\n"
    (error,) = parse_body(schema_of(), CSV, wide.encode(), labelled=True).errors
    assert error.reason == "the row has more than 10,000 columns"


def test_names_with_dots_are_nested_columns_and_not_twice():
    columns = {"label": "y", "types": {"a.b": "category"}}
    schema = schema_of({"columns": columns})
    same = [{"y": 1, "a.b": "02"}, {"y": 1, "a": {"b": "02"}}]
    parsed = parse_body(schema, None, json.dumps(same).encode(), labelled=True)
    first, second = parsed.rows.indptr[1:]
    assert parsed.rows.indices[:first] == parsed.rows.indices[first:second]
    odd = [{"y": 1, ".": 1}, {"y": 1, "a.": 2}, {"y": 1, "a": {"": 2}}, {"y": 1, "a": {}}]
    parsed = parse_body(schema, None, json.dumps(odd).encode(), labelled=True)
    assert not parsed.errors and [name for _, name in parsed.rows.names] == [".", "a."]
    assert parsed.rows.indices[1] == parsed.rows.indices[2]
    both = {"y": 1, "a.b": "x", "a": {"b": "y"}}
    (error,) = parse_body(schema, None, json.dumps(both).encode(), labelled=True).errors
    assert error.reason == "the column 'a.b' is there twice"


def test_a_column_may_change_its_type_where_none_is_declared():
    rows = [{"clicked": 1, "a": 5}, {"clicked": 0, "a": "x"}, {"clicked": 0, "a": ["x", "y"]}]
    parsed = parse_body(schema_of(), None, json.dumps(rows).encode(), labelled=True)
    assert [name for _, name in parsed.rows.names] == ["a", "a=x", "a=y"]
    assert parsed.rows.indptr == [0, 1, 2, 4]


def stream_of(**columns):
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_arrow_columns_of_every_type_are_read_or_refused_by_name():
    columns = {"label": "y", "ignore": ["skip"], "types": {"at": "time", "city": "category"}}
    schema = schema_of({"columns": columns})
    far = pa.array([10**12, 1_700_000_000], pa.timestamp("s"))
    body = stream_of(
        y=[1, 0],
        at=far,
        city=pa.array(["Oslo", None]).dictionary_encode(),
        skip=far,
        tags=[["a", "b"], []],
        user=[{"age": 3}, {"age": None}],
        nan=[float("nan"), 2.0],
    )
    parsed = parse_body(schema, ARROW, body, labelled=True)
    (error,) = parsed.errors
    assert (error.index, error.pointer) == (0, "/at") and "does not hold" in error.reason
    names = [name for _, name in parsed.rows.names]
    assert set(names) == {"at.hour.sin", "at.hour.cos", "at.weekday=tue", "nan"}
    for values in ([b"x", b"y"], [timedelta(1), timedelta(2)]):
        parsed = parse_body(schema, ARROW, stream_of(y=values, a=[1, 2]), labelled=True)
        assert [error.pointer for error in parsed.errors] == ["/y", "/y"]
        parsed = parse_body(schema, ARROW, stream_of(y=[1, 0], a=values), labelled=True)
        assert [error.pointer for error in parsed.errors] == ["/a", "/a"]


def test_a_short_arrow_body_of_many_values_is_refused():
    cells = pa.ListArray.from_arrays([0, 1 << 23], pa.nulls(1 << 23))
    with pytest.raises(Problem, match="values; the limit is") as refused:
        parse_body(schema_of(), ARROW, stream_of(clicked=[1], a=cells), labelled=True)
    assert refused.value.status == 413


def test_decimal_signs_count_in_all_columns_but_texts():
    types = {"price": "number", "size": "category", "note": "text", "on": "boolean", "at": "time"}
    schema = schema_of({"columns": {"types": types, "ignore": ["ip"]}})
    body = b"y;price;size;note;ip;on;at\n1;3,5;1,5;2,5;9.9;1,0;1711850400,5\n"
    parsed = parse_body(schema, "text/csv; decimal=%2C", body, labelled=True)
    result = dict(
        zip((i for i, _ in parsed.rows.names), (n for _, n in parsed.rows.names), strict=True)
    )
    values = dict(zip((result[i] for i in parsed.rows.indices), parsed.rows.values, strict=True))
    assert values["price"] == 3.5 and "size=1.5" in values and "note:5" in values
    assert values["on"] == 1.0 and "at.hour.sin" in values
    body = b"y;price;size;note\n1;3,5;5,0;2,5\n"
    parsed = parse_body(schema, "text/csv; decimal=%2C", body, labelled=True)
    assert "size=5" in dict(parsed.rows.names).values()  # as of JSON's 5
    (error,) = parse_body(schema, CSV, body, labelled=True).errors
    assert error.pointer == "/price" and "decimal comma" in error.reason
    assert "--format csv-decimal-comma" in error.reason


@pytest.mark.parametrize("rows", [1, 2000])
def test_decimal_signs_do_not_count_in_columns_that_are_left_out(rows):
    spec = {"columns": {"types": {"price": "number"}, "unknown": "ignore"}}
    body = b"y;price;size\n" + b"1;2;2,5\n" * rows
    parsed = parse_body(RowSchema(resolve_spec(spec)), "text/csv", body, labelled=True)
    assert parsed.errors == [] and parsed.count == rows
