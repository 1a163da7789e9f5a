"""One meaning of a text in every format: a number, a boolean, a category, absent, or refused."""

import json
import math
import re
from types import SimpleNamespace

import pyarrow as pa
import pytest

from dualstream.client import BadInput
from dualstream.service.api.late_labels import _LabelRequest
from dualstream.service.cli.rows import _row
from dualstream.service.codecs import (
    as_batch,
    media_type,
    parse_body,
    parse_messages,
    parse_named_row,
    parse_query_row,
)
from dualstream.solvers import hash_names
from dualstream.wire.problems import Problem
from tests.service.codecs.test_formats import HASHED, INDEXED, learn, schema_of, stream_of

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


def in_message(text: str) -> float | str:
    fields = [(b"y", b"1"), (b"x.a", text.encode())]
    return features(parse_messages(schema_of(SPEC), [fields], 10_000))


def in_command(text: str) -> float | str:
    try:
        body = json.dumps({"x": _row([f"a={text}"]), "y": 1}).encode()
    except BadInput:
        return REFUSED
    return features(parse_body(schema_of(SPEC), None, body, labelled=True))


READERS = {
    "csv": in_csv,
    "csv by kernel": lambda text: in_csv(text, 2000),
    "query": lambda text: of_problem(lambda: parse_named_row(schema_of(SPEC), {"a": text})),
    "message": in_message,
    "command": in_command,
}


@pytest.mark.parametrize("reader", READERS)
def test_a_text_has_one_meaning_as_a_feature(reader):
    found = {text: READERS[reader](text) for text in TABLE}
    # An absent feature and a zero are the same row.
    expected = {text: 0 if value == ABSENT else value for text, value in TABLE.items()}
    assert found == expected


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


NUMERIC = {
    "vw": lambda text: first_value(body_of(VW, f"1 | 1:{text}")),
    "libsvm": lambda text: first_value(body_of(LIBSVM, f"1 1:{text}")),
    "query": query_value,
    "message": lambda text: first_value(
        parse_messages(schema_of(INDEXED), [[(b"y", b"1"), (b"x", f"1:{text}".encode())]], 1000)
    ),
    "csv": lambda text: first_value(body_of(CSV, f'1,2,y\n"{text}",,1')),
}


@pytest.mark.parametrize("place", NUMERIC)
def test_a_text_has_one_meaning_where_only_a_number_can_be(place):
    texts = [text for text in TABLE if text.strip() and not re.search("[ ,:]", text)]
    texts = [text for text in texts if place == "csv" or text not in BOOLEANS]
    found = {text: NUMERIC[place](text) for text in texts}
    assert found == {
        text: value if isinstance(value := TABLE[text], int | float) else REFUSED for text in texts
    }


@pytest.mark.parametrize("media", [CSV, VW])
def test_a_weight_is_the_same_number(media):
    row = {CSV: 'weight,a,y\n"{}",1,1', VW: "1 {} | a"}[media]
    for text in [*NUMBERS, *TEXTS, *NOT_FINITE, "1e400"]:
        if re.search("[ ,]", text):
            continue
        found = weight_in(body_of(media, row.format(text), SPEC))
        number = NUMBERS.get(text, -1)
        assert found == (number if number >= 0 else REFUSED), text


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

    known = schema_of(SPEC)
    known.mark_journalled([(3, ""), (4, "=Oslo")])  # by an earlier release
    for schema in (schema_of(SPEC), known):
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
    fields = [(b"x.", b"1"), (b"y", b"1")]
    assert "no name" in refusal(lambda: parse_messages(schema_of(SPEC), [fields], 1000))


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
def test_names_and_categories_are_composed_in_new_models(form):
    media, composed = named_bodies(COMPOSED, COMPOSED)[form]
    _, decomposed = named_bodies(CAFE, CAFE)[form]
    assert composed != decomposed or form == "escaped"

    def rows(body: bytes, **spec) -> tuple:
        parsed = parse_body(schema_of(SPEC | spec), media, body, labelled=True)
        assert not parsed.errors
        return as_batch([parsed.rows]).indices.tolist(), set(parsed.names)

    assert rows(decomposed) == rows(composed)
    assert {name for _, name in rows(decomposed)[1]} == {COMPOSED, f"city={COMPOSED}"}
    assert rows(decomposed, spec_version=1) != rows(composed, spec_version=1), "its old meaning"


def test_labels_are_composed_and_both_forms_are_one_name():
    spec = SPEC | {"task": "multiclass", "loss": "hinge"}
    for schema in (schema_of(spec), schema_of(SPEC | {"labels": [CAFE, "b"]})):
        assert schema.label(CAFE) == schema.label(COMPOSED)
    row = json.dumps({"x": {CAFE: "a", COMPOSED: "b"}, "y": 1}).encode()
    error = parse_body(schema_of(SPEC), None, row, labelled=True).errors[0]
    assert "duplicated" in error.reason
    with pytest.raises(Problem, match="duplicated"):
        parse_body(schema_of(SPEC), CSV, f"{CAFE},{COMPOSED},y\n1,1,1".encode(), labelled=True)


TWICE = [
    ('{"x": {"a": 1, "a": 2}, "y": 1}', "a"),
    ('{"x": {"a": "s", "a": "t"}, "y": 1}', "a"),
    ('{"x": {"a": "s", "a": "s"}, "y": 1}', "a"),
    ('{"x": {"a": 1, "b": 1, "a": true}, "y": 1}', "a"),
    ('{"x": {"a": 1, "\\u0061": 2}, "y": 1}', "a"),
    ('{"x": {"a": 1}, "y": 1, "y": 0}', "y"),
    ('{"x": {"a": 1}, "y": 1, "weight": 1, "weight": 2}', "weight"),
    ('{"x": {"a": 1}, "y": 1, "id": "r:1", "id": "r"}', "id"),
    ('{"x": {"a": 1}, "x": {"b": 1}, "y": 1}', "x"),
]


@pytest.mark.parametrize(("row", "name"), TWICE)
def test_a_name_twice_in_json_refuses_the_row(row, name):
    fillers = [f'{{"x": {{"w{n}": 1, "a": {n}}}, "y": 1}}' for n in range(1500)]
    message = parse_messages(schema_of(SPEC), [[(b"json", row.encode())]], 10_000)
    found = [message.errors]
    for rows in ([row], [*fillers, row], [row, *fillers], [*fillers[:5], row, *fillers[:5]]):
        for media, body in (
            (NDJSON, "\n".join(rows)),
            (None, f"[{', '.join(rows)}]"),
            (None, f'{{"samples": [{", ".join(rows)}]}}'),
        ):
            parsed = parse_body(schema_of(SPEC), media, body.encode(), labelled=True)
            assert [error.index for error in parsed.errors] == [rows.index(row)]
            found.append(parsed.errors)
    found.append(parse_body(schema_of(SPEC), None, row.encode(), labelled=True).errors)
    for errors in found:
        assert f"'{name}' is duplicated" in errors[0].reason


def test_more_names_than_the_cache_has_room_for_are_compared():
    names = [f"n{n}" for n in range(3000)]
    whole = json.dumps({"x": dict.fromkeys(names, 1), "y": 1})
    twice = [whole.replace('"x": {', f'"x": {{"{name}": "t", ') for name in names[:3] + names[-3:]]
    body = "\n".join([whole, *twice, whole])
    parsed = parse_body(schema_of(SPEC), NDJSON, body.encode(), labelled=True)
    assert [error.index for error in parsed.errors] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("key", ["x", "y", "weight", "ids"])
@pytest.mark.parametrize("filler", [1, 2000])
def test_a_list_twice_in_columns_refuses_the_body(key, filler):
    lists = {"x": '{"a": 1}', "y": "1", "weight": "2", "ids": "null"}
    written = [f'"{name}": [{", ".join([lists[name]] * filler)}]' for name in [*lists, key]]
    with pytest.raises(Problem, match=f"'{key}' is duplicated") as refused:
        parse_body(schema_of(SPEC), None, f"{{{', '.join(written)}}}".encode(), labelled=True)
    assert refused.value.status == 422
    rows = '"samples": [{"x": {"a": 1}, "y": 1}]'
    with pytest.raises(Problem, match="'samples' is duplicated"):
        parse_body(schema_of(SPEC), None, f"{{{rows}, {rows}}}".encode(), labelled=True)
    row = f'{{"x": [{{"a": 1, "a": 2}}{", {}" * filler}], "y": [1{", 1" * filler}]}}'
    parsed = parse_body(schema_of(SPEC), None, row.encode(), labelled=True)
    assert parsed.errors[0].pointer == "/x/0/a" and len(parsed.errors) == 1


@pytest.mark.parametrize("sign", [";", "\t"])
def test_a_delimiter_is_found_from_the_header(sign):
    comma = b'age,"a, b",city,y\n39,1,"Os;lo, ""x"" \tq",1\n,2,\n41,2,Rome,0\n'
    rows = [["age", '"a, b"', "city", "y"], ["39", "1", '"Os;lo, ""x"" \tq"', "1"], ["", "2", ""]]
    body = "\n".join(sign.join(row) for row in [*rows, ["41", "2", "Rome", "0"]]).encode()
    for filler in (0, 500):
        expected, found = (
            parse_body(
                schema_of(SPEC), CSV, text + b"\n" + end.encode() * filler, labelled=labelled
            )
            for labelled in (True,)
            for text, end in ((comma, "1,1,x,1\n"), (body, sign.join("11x1") + "\n"))
        )
        assert as_batch([found.rows]).indices.tolist() == as_batch([expected.rows]).indices.tolist()
        assert [error.index for error in found.errors] == [1]
    assert media_type("text/csv; delimiter=%3B")[1] == media_type('text/csv; delimiter=";"')[1]
    named = parse_body(schema_of(SPEC), "text/csv; delimiter=%7C", b"a|y\n1|1", labelled=True)
    assert not named.errors and named.count == 1


@pytest.mark.parametrize("header", ["y|a", "y;a\tb", "y;price, EUR;a", "y\tb,c\td"])
def test_a_delimiter_in_doubt_is_refused_with_its_parameter(header):
    for labelled in (True, False):
        with pytest.raises(Problem, match="delimiter=%") as refused:
            parse_body(schema_of(SPEC), CSV, f"{header}\n1\n".encode(), labelled=labelled)
        assert refused.value.status == 422


def test_decimal_commas_are_refused_by_name_or_read():
    for filler in (0, 1000):
        body = "price;y\n2,5;1\n" + "1;1\n" * filler + '"1.234,50";0\n'
        parsed = parse_body(schema_of(SPEC), CSV, body.encode(), labelled=True)
        assert [error.index for error in parsed.errors] == [0, filler + 1]
        assert parsed.errors[0].pointer == "/x/price" and "decimal=%2C" in parsed.errors[0].reason
    named = "text/csv; decimal=%2C"
    parsed = parse_body(schema_of(SPEC), named, body.encode(), labelled=True)
    values = as_batch([parsed.rows]).values.tolist()
    assert not parsed.errors and (values[0], values[-1]) == (2.5, 1234.5)
    assert parse_body(schema_of(SPEC), named, b"a;y\n1.5;1", labelled=True).errors
    texts = parse_body(schema_of(SPEC), "text/csv; decimal=.", body.encode(), labelled=True)
    assert not texts.errors


@pytest.mark.parametrize(
    ("content_type", "kind"),
    [
        ("application/ndjson", NDJSON),
        ("application/jsonl", NDJSON),
        ("application/jsonlines", NDJSON),
        ("application/x-ndjson;charset=utf8", NDJSON),
        ('application/json; charset="UTF-8"', "application/json"),
        ("Text/CSV ; Header=present;", CSV),
        ("text/tab-separated-values", CSV),
    ],
)
def test_usual_names_of_a_media_type_are_known(content_type, kind):
    assert media_type(content_type)[0] == kind


@pytest.mark.parametrize(
    "content_type",
    [
        "text/csv; delimter=%3B", "text/csv; delimiter=;", "text/csv; delimiter=ab",
        "text/csv; header=absent", "text/csv; charset=latin1", "application/json; version=2",
        "text/x-vw; tag=name", 'text/csv; header="present',
    ],
)  # fmt: skip
def test_unknown_parameters_of_a_media_type_are_refused(content_type):
    with pytest.raises(Problem) as refused:
        media_type(content_type)
    assert refused.value.status == 415


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("media", [CSV, VW, LIBSVM, NDJSON, None])
def test_utf_16_is_refused_with_advice(media, encoding):
    for labelled in (True, False):
        with pytest.raises(Problem, match="iconv -f UTF-16") as refused:
            parse_body(schema_of(INDEXED), media, "y,a\n1,1\n".encode(encoding), labelled=labelled)
        assert refused.value.status == 400


def test_the_index_of_a_pandas_table_is_no_feature():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "y": [1, 0, 1]})
    for table in (frame[frame.a != 2], frame, frame.set_index(pd.Index([7, 8, 9], name="user"))):
        stream = stream_of(pa.Table.from_pandas(table))
        parsed = parse_body(schema_of(SPEC), ARROW, stream, labelled=True)
        assert [name for _, name in parsed.names] == ["a"]
        assert len(parsed.rows) == len(table)
    assert math.isclose(as_batch([parsed.rows]).values.sum(), 6)


def test_a_late_label_twice_is_refused():
    model = SimpleNamespace(row_schema=schema_of(SPEC))
    asked = _LabelRequest(model, b'{"id": "a", "y": 1, "y": 0}')
    assert "'y' is duplicated" in asked._bad[0].reason and not asked.labels
    asked = _LabelRequest(
        model, b'{"labels": [{"id": "a:b", "y": 1}, {"id": "b", "id": "c", "y": 1}]}'
    )
    assert [label.id for label in asked.labels] == ["a:b"] and "'id'" in asked._bad[0].reason
    with pytest.raises(Problem, match="'labels' is duplicated"):
        _LabelRequest(model, b'{"labels": [], "labels": [{"id": "b", "y": 1}]}')


def test_bodies_by_http_are_those_of_their_media_type(client):
    client.put("/models/m", json=SPEC)
    rows = b'{"x": {"a": 1}, "y": 1}\n' * 60_000
    for media in ("application/jsonl", "application/ndjson; charset=utf8"):
        for body, count in ((rows[:96], 4), (rows, 60_000)):
            assert learn(client, body, media).json()["count"] == count
    semicolons = b"city;a;y\n" + b'"Os;lo\n""";1;1\n' * 120_000
    named = semicolons.replace(b";", b"|").replace(b"Os|lo", b"Os;lo")
    for media, body in ((CSV, semicolons), ("text/csv; delimiter=%7C", named)):
        learned = learn(client, body, media).json()
        assert (learned["count"], learned.get("rejected")) == (120_000, 0), learned
    scores = [
        client.post("/models/m/predict", content=body, headers={"content-type": CSV}).json()
        for body in (b"a;city\n1;Oslo\n0;Rome\n", b"a,city\n1,Oslo\n0,Rome\n")
    ]
    assert scores[0]["scores"] == scores[1]["scores"] and len(set(scores[0]["scores"])) == 2
    assert client.get("/models/m/predict?x.a=NaN").status_code == 422
    answer = client.post(
        "/models/m/learn", content=b"a;y\n1;1", headers={"content-type": "text/csv; separator=%3B"}
    )
    assert answer.status_code == 415 and "separator" in answer.json()["detail"]
