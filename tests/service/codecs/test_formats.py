"""Every format of learn and predict: the same rows give the same bits, bad rows are named."""

import json

import pyarrow as pa
import pyarrow.ipc
import pytest

from dualstream.service.codecs import parse_body
from dualstream.service.codecs.row_schema import LONGEST_NAME
from tests.service.codecs.support import (
    ARROW,
    CSV,
    HASHED,
    INDEXED,
    NDJSON,
    VW,
    bits,
    learn,
    schema_of,
    stream_of,
)
from tests.service.conftest import assert_problem
from tests.service.support import bits as state_bits


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\n", "\n\n \t\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_marks_are_no_part_of_rows(ending, last, mark):
    lines = ['{"x": {"1": 1}, "y": 1}', "", '{"x": [0, 0, 1, 0, 2.5], "y": 0, "weight": 2}']
    body = mark + ending.join(lines) + last
    parsed = parse_body(schema_of(INDEXED), NDJSON, body.encode(), labelled=True)
    expected = {"samples": [json.loads(line) for line in lines if line]}
    same = parse_body(schema_of(INDEXED), None, json.dumps(expected).encode(), labelled=True)
    assert parsed.count == 2 and bits(parsed) == bits(same)


@pytest.mark.parametrize(
    ("line", "pointer", "reason"),
    [
        ('{"x": {"1": 1}, "y": 1', "", "truncated"),
        ('{"x": {"1": NaN}, "y": 1}', "", "byte 12"),
        ('{"x": {"\\ud800": 1}, "y": 1}', "", "half of a surrogate pair (byte 8)"),
        ('{"x": {"1": ' + "9" * 5000 + '}, "y": 1}', "/x/1", "more than 4,300 digits"),
        ('{"x": {"1": 1}, "y": ' + "9" * 5000 + "}", "/y", "more than 4,300 digits"),
        ('{"x": {"1": 1e999}, "y": 1}', "/x/1", "out of range"),
        ('{"x": {"1": null}, "y": 1}', "/x/1", "null"),
        ('{"x": {"1": null, "1": 1}, "y": 1}', "/x/1", "null"),
        ('{"x": {"1": 1, "2": [1]}, "y": 1}', "/x/2", "array"),
        ('{"x": [1, 2], "y": 1}', "/x", "2 numbers"),
        ('{"x": {"1000000000": 1}, "y": 1}', "/x/1000000000", "above dim 5"),
        ('{"x": {"1": 1, "1": 2}, "y": 1}', "/x/1", "'1' is duplicated"),
        ('{"x": {"1": 1}, "y": 1, "y": 0}', "/y", "'y' is duplicated"),
        ('{"x": {"1": 1}}', "/y", "missing"),
        ('{"x": {"1": 1}, "y": 3}', "/y", "not a label"),
        ('{"samples": []}', "", "unknown field"),
        ('{"a": 1, "y": 1}', "", "only a model with `columns` takes flat rows"),
        ('{"x": {}, "y": 1, "wieght": 2}', "", 'optional "weight" and "id"'),
        ('{"y": 1}', "", 'features in "x"'),
        ("[1]", "", "object"),
        ('{"x": {"1": ' + "[" * 9999 + "]" * 9999 + '}, "y": 1}', "/x", "array"),
        ("\xff", "", "malformed"),
        ('{"x": {"1": 1}, "y": 1} {}', "", "trailing"),
        ('{"x": {"1": 1}, "y": 1, "weight": -1}', "/weight", "weight"),
        ('{"x": {"1": 1}, "y": 1, "id": ""}', "/id", "id"),
    ],
)
def test_a_line_that_is_no_sample_is_refused_alone(line, pointer, reason):
    body = b"\n".join(
        [b'{"x": {"1": 1}, "y": 1}', b"", line.encode("latin-1"), b'{"x": {}, "y": 0}']
    )
    parsed = parse_body(schema_of(INDEXED), NDJSON, body, labelled=True)
    assert (list(parsed.row_indices), len(parsed.errors)) == ([0, 2], 1)
    bad = parsed.errors[0]
    assert (bad.index, bad.line, bad.pointer) == (1, 3, pointer) and reason in bad.reason


def test_duplicate_hashed_indices_are_summed_in_order():
    """Vowpal Wabbit adds the values of a name; JSON and tables refuse the name."""
    text = b"1 | a:0.1 x:1 a:0.2 c=t a:0.3 c=t"
    summed = {"x": {"a": 0.1 + 0.2 + 0.3, "x": 1, "c=t": 2}, "y": 1}
    expected = parse_body(schema_of(HASHED), None, json.dumps(summed).encode(), labelled=True)
    assert bits(parse_body(schema_of(HASHED), VW, text, labelled=True)) == bits(expected)


def test_what_sums_to_more_than_a_number_may_be_is_refused():
    body = b"1 | a:1e100 b:1 a:1e100"
    parsed = parse_body(schema_of(HASHED), VW, body, labelled=True)
    assert "add up" in parsed.errors[0].reason and not parsed.row_indices


def test_bad_lines_come_back_beside_what_was_learned(client):
    client.put("/models/m", json=HASHED)
    long = "n" * (LONGEST_NAME + 1)
    lines = ['{"x": {"a": 1}, "y": 1}', "{", "", json.dumps({"x": {long: 1}, "y": 1})]
    got = learn(client, "\n".join(lines), NDJSON).json()
    assert (got["count"], got["rejected"]) == (1, 2)
    assert [(error["index"], error["line"]) for error in got["errors"]] == [(1, 2), (2, 4)]
    many = learn(client, "\n".join(["{"] * 150), NDJSON)
    got = assert_problem(many, 422, "invalid-rows")
    assert got["rejected"] == 150 and len(got["errors"]) == 100 and "line 1" in got["detail"]
    assert_problem(
        learn(client, "\n".join(lines), NDJSON, "/models/m/learn?atomic=1"), 422, "invalid-rows"
    )
    got = learn(
        client, '{"x": {"a": 1}}\n{"x": {"b": "t"}, "y": null}', NDJSON, "/models/m/predict"
    ).json()
    assert len(got["scores"]) == 2


# Weight, label and features of each row; numbers that are read in several ways.
NAMED_ROWS = [
    (1.0, 1, {"age": 39.0, "city": "Oslo", "member": True, "price": 0.1}),
    (2.0, 0, {"age": 0.30000000000000004, "city": "são paulo", "member": False, "price": 0.0}),
    (0.5, 1, {"price": -1e-7, "age": 12345678901234567890.0, "city": "a=b", "member": False}),
    (1.0, 0, {"city": "Oslo", "price": 1e22, "age": -7.0, "member": True}),
] * 40
NUMBERED_ROWS = [
    (1.0, 1, {"1": 0.1, "3": -2.0, "5": 1e-7}),
    (0.25, 0, {"5": 1.0, "2": 3.3333333333333335}),
    (3.0, 1, {"4": 123456789.125}),
] * 60


def in_ndjson(rows) -> str:
    return "\n".join(
        json.dumps({"x": x, "y": y, "weight": c}, ensure_ascii=False) for c, y, x in rows
    )


def in_csv(rows) -> str:
    names = sorted({name for *_, x in rows for name in x})
    lines = [",".join(["weight", *names, "label"])]
    for c, y, x in rows:
        fields = [repr(c), *(in_field(x[name]) if name in x else "" for name in names), str(y)]
        lines.append(",".join(fields))
    return "\n".join(lines)


def in_field(value) -> str:
    if isinstance(value, str):
        return f'"{value}"' if " " in value else value
    return json.dumps(value)


def in_vw(rows) -> str:
    return "\n".join(
        f"{y} {c} 'tag| " + " ".join(map(in_token, *zip(*x.items(), strict=True)))
        for c, y, x in rows
    )


def in_token(name: str, value) -> str:
    if isinstance(value, str):
        return f"{name}={value}"
    return f"{name}:{float(value)!r}"


def in_arrow(rows) -> bytes:
    """A stream of two batches. A number that a row does not have is 0, which is no entry either."""
    c, y, x = zip(*rows, strict=True)
    names = sorted({name for row in x for name in row})
    features = {name: [row.get(name, 0.0) for row in x] for name in names}
    table = pa.table({"weight": c} | features | {"y": y})
    return stream_of(table.slice(0, 7), table.slice(7))


def without_spaces(rows):
    """What tokens cannot hold."""
    return [
        (
            c,
            y,
            {
                name: v.replace(" ", "_") if isinstance(v, str) else v
                for name, v in sorted(x.items())
            },
        )
        for c, y, x in rows
    ]


@pytest.mark.parametrize(("spec", "rows"), [(HASHED, NAMED_ROWS), (INDEXED, NUMBERED_ROWS)])
def test_the_same_rows_have_the_same_bits_in_every_format(client, spec, rows):
    rows = without_spaces(rows)
    samples = json.dumps({"samples": [{"x": x, "y": y, "weight": c} for c, y, x in rows]})
    written = {
        "application/json": samples,
        NDJSON: in_ndjson(rows),
        CSV: in_csv(rows),
        VW: in_vw(rows),
        ARROW: in_arrow(rows),
    }
    result, states = {}, {}
    for number, (media, text) in enumerate(written.items()):
        body = text if isinstance(text, bytes) else text.encode()
        parsed = parse_body(schema_of(spec), media, body, labelled=True)
        assert not parsed.errors, (media, parsed.errors)
        result[media] = bits(parsed)
        model = f"/models/m{number}"
        client.put(model, json=spec)
        got = learn(client, body, media, f"{model}/learn?scores=true").json()
        assert got["learned"] == len(rows)
        states[media] = state_bits(client.app._registry.find(f"m{number}").replica), got["scores"]
        predicted = learn(client, body, media, f"{model}/predict").json()
        assert (
            predicted["scores"]
            == learn(client, samples, "application/json", f"{model}/predict").json()["scores"]
        )
    for media in written:
        assert result[media] == result[NDJSON], media
        state, scores = states[media]
        different = [k for k in state if state[k] != states[NDJSON][0][k]]
        assert not different and scores == states[NDJSON][1], media


def errors_of(spec, media: str, body: str | bytes) -> list[tuple]:
    body = body.encode() if isinstance(body, str) else body
    parsed = parse_body(schema_of(spec), media, body, labelled=True)
    return [(error.index, error.line, error.pointer, error.reason) for error in parsed.errors]


def test_csv_holds_quotes_line_ends_and_empty_fields():
    body = (
        '\ufeffcity,y,"a ""b""",age\r\n"Os,lo",1,"1","x\r\ny"\r\n\r\n,0,,7\r\n"tr""ue",true,true,'
    )
    rows = [
        {"x": {"city": "Os,lo", 'a "b"': 1, "age": "x\r\ny"}, "y": 1},
        {"x": {"age": 7}, "y": 0},
        {"x": {"city": 'tr"ue', 'a "b"': True}, "y": True},
    ]
    parsed = parse_body(schema_of(HASHED), CSV, body.encode(), labelled=True)
    expected = parse_body(
        schema_of(HASHED), None, json.dumps({"samples": rows}).encode(), labelled=True
    )
    assert not parsed.errors and bits(parsed) == bits(expected)


@pytest.mark.parametrize("spec", [HASHED, HASHED | {"columns": {"label": "y"}}])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("times", [1, 2000])
def test_a_line_without_text_is_a_row_of_a_single_column(spec, end, times):
    def parsed(lines: list[str]):
        body = end.join(["age", *lines * times, ""]).encode()
        return parse_body(schema_of(spec), CSV, body, labelled=False)

    written = parsed(["7", '""', '"a\n\nb"', "x", '""'])
    assert written.count == 5 * times and not written.errors
    assert bits(parsed(["7", "", '"a\n\nb"', "x", ""])) == bits(written)
    refused = parsed(["", "nan", ""])
    assert refused.count == 3 * times
    assert (refused.errors[0].index, refused.errors[0].line) == (1, 3)


def test_bad_records_of_csv_are_named():
    body = 'a,y\n1,1\n1\n\n"q""\nx",1\n2,1,3\n1,\n"b"c,0\n3,maybe\n"open,1\n4,0\n'
    result = errors_of(HASHED, CSV, body)
    assert [(index, line) for index, line, *_ in result] == [
        (1, 3),
        (3, 7),
        (4, 8),
        (5, 9),
        (6, 10),
        (7, 11),
    ]
    for (*_, pointer, reason), (where, why) in zip(
        result,
        [
            ("", "1 field;"),
            ("", "3 fields"),
            ("/y", "missing"),
            ("", "after the closing quote"),
            ("/y", "'maybe'"),
            ("", "is not closed"),
        ],
        strict=True,
    ):
        assert pointer == where and why in reason
    assert errors_of(INDEXED, CSV, "1,label\nx,1\n1e400,1\n")[0][3].startswith(
        "the value must be a number"
    )
    assert "1e100" in errors_of(INDEXED, CSV, "1,label\n1e400,1\n")[0][3]
    assert "1e100" in errors_of(INDEXED, CSV, f"1,label\n{'9' * 400},1\n")[0][3]


@pytest.mark.parametrize(
    ("spec", "header", "reason"),
    [
        (HASHED, "a,b", "the label column is missing"),
        (HASHED, "a,y,label", "have the same role"),
        (HASHED, "n" * (LONGEST_NAME + 1) + ",y", "at most 1024 characters"),
        (HASHED, ",".join(map(str, range(70_000))) + ",y", "70001 columns"),
        (HASHED, '"a,y', "is not closed"),
        (HASHED, '{"x": {"a": 1}, "y": 1}', "send JSON as application/json"),
        (INDEXED, "age,y", "not an index"),
        (INDEXED, "6,y", "above dim 5"),
        (INDEXED, "1,2,2,y", "column '2' is duplicated"),
    ],
)
def test_a_header_that_no_row_can_use_refuses_the_body(client, spec, header, reason):
    client.put("/models/m", json=spec)
    got = assert_problem(learn(client, header + "\n1,1\n", CSV), 422, "invalid-body")
    assert reason in got["detail"]


def test_lines_of_vowpal_wabbit_are_rows_by_name():
    body = (
        "1 2 'first|ns age:39 city=Oslo |other:0.5 age:4 b\n-1 |ns:2 b b:2 |ns b\n+1 tag| a a:2\n"
    )
    rows = [
        {
            "x": {"ns^age": 39, "ns^city": "Oslo", "other^age": 2, "other^b": 0.5},
            "y": 1,
            "weight": 2,
        },
        {"x": {"ns^b": 2.0 + 4.0 + 1.0}, "y": -1},
        {"x": {"a": 3}, "y": 1},
    ]
    parsed = parse_body(schema_of(HASHED), VW, body.encode(), labelled=True)
    expected = parse_body(
        schema_of(HASHED), None, json.dumps({"samples": rows}).encode(), labelled=True
    )
    assert not parsed.errors and bits(parsed) == bits(expected)


@pytest.mark.parametrize(
    ("line", "pointer", "reason"),
    [
        ("1 a:1", "", "no |"),
        ("| a:1", "/y", "missing"),
        ("3 | a:1", "/y", "not a label"),
        ("1 x | a:1", "/weight", "must be a number"),
        ("1 -1 | a:1", "/weight", "in [0, 1e100]"),
        ("1 1 0.5 | a:1", "", "initial prediction"),
        ("1 | a:", "/x/a", "not a number"),
        ("1 | a:nan", "/x/a", "not a finite number"),
        ("1 |ns a:1e200", "/x/ns^a", "1e100"),
        ("1 | :1", "/x", "no name"),
        ("1 |:2 a", "", "needs a name"),
        ("1 | " + "n" * (LONGEST_NAME + 1), "/x/" + "n" * 50, "at most"),
        ("1 | \xff", "", "UTF-8"),
        ("1 | a\0b", "", "control"),
    ],
)
def test_a_line_of_vowpal_wabbit_that_is_no_row_is_refused_alone(line, pointer, reason):
    result = errors_of(HASHED, VW, b"1 | a\n\n" + line.encode("latin-1") + b"\r\n0 | b")
    assert len(result) == 1 and result[0][:3] == (1, 3, pointer) and reason in result[0][3]


def test_tags_are_ids_where_the_media_type_says_so(client):
    client.put("/models/m", json=HASHED)
    body = "1 'one| a:1\n0 'two| b:1\n"
    for media, count in ((VW, 2), (VW, 2), (f"{VW}; tag=id", 2), (f"{VW}; tag=id", 0)):
        assert learn(client, body, media).json()["count"] == count
    got = learn(client, "x,y,id\n1,0,two\n,1,\n", CSV).json()
    assert got["count"] == 1 and got["errors"][0]["index"] == 0, "another sample with this id"


def test_duplicate_indices_are_refused_if_indexed():
    for media, body in (
        (NDJSON, '{"x": {"1": 1, "1": 2}, "y": 1}'),
        (VW, "1 | 1:1 1:2"),
        ("text/x-libsvm", "1 1:1 1:2"),
    ):
        assert "duplicated" in errors_of(INDEXED, media, body)[0][3]


@pytest.mark.parametrize("media", [NDJSON, CSV, VW])
def test_a_body_without_rows_is_refused(client, media):
    client.put("/models/m", json=HASHED)
    for body in ("", "\n\r\n"):
        assert_problem(learn(client, body, media), 422, "invalid-rows")
