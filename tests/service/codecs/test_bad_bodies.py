"""Each kind of bad input in each format: what is refused, by which reason, and what is not.

Line formats are read twice: a short body record by record, and behind good rows by the kernels.
"""

import gzip
import json

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from dualstream.service.codecs import as_batch, parse_body, parse_query_row
from dualstream.service.codecs.row_schema import RowLimits, RowSchema
from dualstream.service.codecs.table_columns import MAX_COLUMNS
from dualstream.solvers import resolve_spec
from dualstream.solvers.rows.text.tokens import MAX_ROW_NAMES
from dualstream.wire.problem_json import Problem
from tests.service.codecs.support import (
    ARROW,
    CSV,
    HASHED,
    INDEXED,
    NDJSON,
    VW,
    bits,
    schema_of,
    stream_of,
)
from tests.service.conftest import assert_problem
from tests.wire.support import cut

JSON, LIBSVM = "application/json", "text/x-libsvm"
WIDE = INDEXED | {"features": {"kind": "indexed", "dim": 2**31 - 2}}
LONG = "n" * (1 << 20)
MILLION = 10**6

# Two good rows of each format, and the most of them that go before others.
GOOD = {
    JSON: '{"samples": [%s{"x": {"1": 1, "3": 0.5}, "y": 1}, {"x": {"2": 2}, "y": 0}]}',
    NDJSON: '{"x": {"1": 1, "3": 0.5}, "y": 1}\n{"x": {"2": 2}, "y": 0}\n',
    CSV: "1,3,2,y\n1,0.5,,1\n,,2,0\n",
    VW: "1 | 1:1 3:0.5\n0 | 2:2\n",
    LIBSVM: "1 1:1 3:0.5\n0 2:2\n",
}
ROWS = {NDJSON: GOOD[NDJSON], CSV: "1,0.5,,1\n", VW: GOOD[VW], LIBSVM: GOOD[LIBSVM]}
LINES = [NDJSON, CSV, VW, LIBSVM]


def read(media: str, body: str | bytes, spec: dict = INDEXED):
    body = body.encode("utf-8", "surrogateescape") if isinstance(body, str) else body
    return parse_body(schema_of(spec), media, body, labelled=True)


def refused(media: str, body: str | bytes, spec: dict = INDEXED) -> tuple[int, str]:
    with pytest.raises(Problem) as caught:
        read(media, body, spec)
    return caught.value.status, caught.value.detail


def assert_one_bad(media: str, row: str, reason: str, spec: dict = INDEXED) -> None:
    """The row is refused alone, for this reason, whoever reads it."""
    if media == JSON:
        alone = read(JSON, f'{{"samples": [{row}]}}', spec)
        beside = read(JSON, GOOD[JSON] % f"{row}, ", spec)
        assert (len(beside.row_indices), len(beside.errors)) == (2, 1)
    else:
        head = "1,3,2,y\n" if media == CSV else ""
        alone = read(media, head + row, spec)
        many = 4096 // len(ROWS[media]) + 1
        # Behind rows that a kernel reads, and before others.
        beside = read(media, head + ROWS[media] * many + row + "\n" + ROWS[media], spec)
        good = ROWS[media].count("\n")
        assert len(beside.row_indices) == (many + 1) * good
        assert [error.index for error in beside.errors] == [many * good]
    assert (len(alone.row_indices), len(alone.errors)) == (0, 1)
    for parsed in (alone, beside):
        assert reason in parsed.errors[0].reason, parsed.errors[0]


def same_rows(media: str, body: str | bytes, other: str | bytes, spec: dict = INDEXED) -> None:
    one, two = read(media, body, spec), read(media, other, spec)
    assert bits(one) == bits(two) and not one.errors and len(one.row_indices) == 2


@pytest.mark.parametrize(
    ("media", "cut"),
    [(NDJSON, "byte 22"), (VW, "not a number"), (LIBSVM, "not a finite number"), (CSV, "field")],
)
def test_a_line_that_is_cut_off_is_refused_alone(media, cut):
    rows = {NDJSON: '{"x": {"1": 1, "3": 0.', VW: "1 | 1:1 3:", LIBSVM: "1 1:1 3:", CSV: "1,0.5,"}
    assert_one_bad(media, rows[media], cut)


def test_a_truncated_body_without_lines_is_refused_whole():
    text = (GOOD[JSON] % "").encode()
    stream = stream_of(pa.table({"1": [1.0, 2.0], "y": [1, 0]}))
    for body in (text[:at] for at in range(1, len(text))):
        assert refused(JSON, body)[0] == 400
    end = len(stream) - 8  # the mark of the end may be missing
    assert len(read(ARROW, stream[:end]).row_indices) == 2
    for at in (1, 4, 7, 8, 100, end // 2, end - 1):
        assert refused(ARROW, stream[:at])[0] == 400


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("media", [JSON, *LINES, ARROW])
def test_a_compressed_body_that_does_not_say_so_is_refused(media, compress):
    """One of zstd holds lines as they are where it could not make them shorter."""
    body = compress((GOOD.get(media, "x") * 3).encode())
    status, detail = refused(media, body)
    assert status == 400 and "Content-Encoding" in detail
    if media != JSON:
        with pytest.raises(Problem, match="Content-Encoding"):
            cut(media, [body[:1], body[1:]])


@pytest.mark.parametrize("media", [JSON, NDJSON])
def test_a_million_numbers_are_not_five(media):
    row = f'{{"x": [{",".join(["1"] * MILLION)}], "y": 1}}'
    assert_one_bad(media, row, "1,000,000 numbers")


@pytest.mark.parametrize("media", [CSV, ARROW])
def test_a_million_columns_are_refused(media):
    if media == CSV:
        body: str | bytes = ",".join(map(str, range(MILLION))) + ",y\n1,1\n"
        count = MILLION + 1
    else:  # as many as its library makes within a second
        count = MAX_COLUMNS + 1
        body = stream_of(pa.table([pa.array([1])] * count, [*map(str, range(1, count)), "y"]))
    status, detail = refused(media, body, HASHED)
    assert status == 422 and f"{count} columns" in detail


@pytest.mark.parametrize("media", [JSON, NDJSON, VW])
def test_a_row_has_at_most_100000_names_and_no_more_are_hashed(media):
    names = [f"f{n}" for n in range(MAX_ROW_NAMES + 1)]
    names[7] = "f:7" if media != VW else "f7"

    def row(names: list[str], zero: str) -> str:
        if media == VW:
            return "1 | " + " ".join(names) + f":{zero}"
        return json.dumps({"x": dict.fromkeys(names, 1) | {names[-1]: float(zero)}, "y": 1})

    for labelled, zero in ((True, "0"), (False, "1")):
        schema = schema_of(HASHED)
        (error,) = parse_body(schema, media, row(names, zero).encode(), labelled=labelled).errors
        assert (error.pointer, error.reason) == ("/x", "the row has more than 100,000 names")
        assert not schema.owned_objects()[0]
        parsed = parse_body(schema, media, row(names[1:], zero).encode(), labelled=labelled)
        assert not parsed.errors
    if media != JSON:
        assert_one_bad(media, row(names, "1"), "more than 100,000 names", HASHED)


def test_a_million_features_of_a_row_are_taken_where_they_have_room():
    values = [k % 7 + 1 for k in range(MILLION)]
    pairs = " ".join(f"{k + 1}:{x}" for k, x in enumerate(values))
    assert_one_bad(LIBSVM, f"1 {pairs}", "the limit is 100000", WIDE)
    schema = RowSchema(resolve_spec(WIDE), RowLimits(MILLION, MILLION))
    batch = as_batch([parse_body(schema, LIBSVM, f"1 {pairs}".encode(), labelled=True).rows])
    assert np.array_equal(batch.values, values) and np.array_equal(batch.indices, range(MILLION))


@pytest.mark.parametrize("media", [JSON, *LINES])
def test_an_index_of_a_billion_is_above_the_width_or_taken(media):
    rows = {
        JSON: '{"x": {"1000000000": 1}, "y": 1}',
        NDJSON: '{"x": {"1000000000": 1}, "y": 1}',
        CSV: "1000000000,y\n1,1\n",
        VW: "1 | 1000000000:1",
        LIBSVM: "1 1000000000:1",
    }
    if media == CSV:
        status, detail = refused(CSV, rows[CSV])
        assert status == 422 and "above dim 5" in detail
    else:
        assert_one_bad(media, rows[media], "above")
    batch = as_batch([read(media, rows[media], WIDE).rows])
    assert batch.indices.tolist() == [10**9 - 1] and batch.values.tolist() == [1.0]
    beyond = rows[media].replace("1000000000", "99999999999999999999")
    if media == CSV:
        assert refused(CSV, beyond, WIDE)[0] == 422
    else:
        assert len(read(media, beyond, WIDE).errors) == 1


@pytest.mark.parametrize("media", [JSON, NDJSON, VW, LIBSVM])
def test_an_index_of_more_digits_than_python_reads_is_above_the_width(media):
    index = "9" * 5000
    rows = {VW: f"1 | {index}:1", LIBSVM: f"1 {index}:1"}
    row = rows.get(media, f'{{"x": {{"{index}": 1}}, "y": 1}}')
    assert_one_bad(media, row, "1024 characters" if media == VW else "above")
    assert refused(CSV, f"{index},y\n1,1\n")[0] == 422
    with pytest.raises(Problem, match="above"):
        parse_query_row(schema_of(INDEXED), f"{index}:1")


def test_columns_of_a_table_of_arrow_are_indices_too():
    stream = stream_of(pa.table({"1000000000": [1.0], "y": [1]}))
    assert refused(ARROW, stream)[0] == 422
    assert as_batch([read(ARROW, stream, WIDE).rows]).indices.tolist() == [10**9 - 1]


@pytest.mark.parametrize("media", [JSON, NDJSON, VW])
def test_a_name_of_a_megabyte_is_refused_with_its_row(media):
    row = f"1 | {LONG}:1" if media == VW else f'{{"x": {{"{LONG}": 1}}, "y": 1}}'
    assert_one_bad(media, row, "1024 characters", HASHED)
    text = f"1 | a={LONG}:1" if media == VW else f'{{"x": {{"a": "{LONG}"}}, "y": 1}}'
    assert_one_bad(media, text, "1024 characters", HASHED)


def test_a_column_name_of_a_megabyte_is_refused_with_the_table():
    table = stream_of(pa.table({LONG: [1.0], "y": [1]}))
    for media, body in ((CSV, f"{LONG},y\n1,1\n"), (ARROW, table)):
        status, detail = refused(media, body, HASHED)
        assert status == 422 and "1024 characters" in detail and len(detail) < 1000
    assert_one_bad(CSV, f"{LONG},,,1", "1024 characters", HASHED)
    texts = read(ARROW, stream_of(pa.table({"a": [LONG, "b"], "y": [1, 0]})), HASHED)
    assert texts.row_indices == [1] and "1024 characters" in texts.errors[0].reason


@pytest.mark.parametrize(
    ("media", "row", "reason"),
    [
        (JSON, '{"x": [1, 2, 3], "y": 1}', "3 numbers"),
        (NDJSON, '{"x": [1, 2, 3, 4, 5, 6], "y": 1}', "6 numbers"),
        (CSV, "1,2,3", "field"),
        (CSV, "1,2,3,4,1", "field"),
    ],
)
def test_a_row_of_another_width_is_refused_alone(media, row, reason):
    assert_one_bad(media, row, reason)


@pytest.mark.parametrize(
    ("media", "row"),
    [(NDJSON, '{"x": {"\udcff": 1}, "y": 1}'), (CSV, "1,\udcff,,1"), (VW, "1 | a\udcff:1")],
)
def test_a_line_that_is_no_utf8_is_refused_alone(media, row):
    assert_one_bad(media, row, "UTF-8", HASHED)


def test_a_body_that_is_no_utf8_is_refused():
    assert refused(JSON, '{"x": {"\udcff": 1}, "y": 1}')[0] == 400
    assert refused(CSV, "\udcff,y\n1,1\n", HASHED)[0] == 422
    assert_one_bad(LIBSVM, "\udcff 1:1", "label")
    words = pa.StringArray.from_buffers(
        1, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")
    )
    stream = stream_of(pa.table({"a": words, "y": [1]}))
    assert refused(ARROW, stream, HASHED)[0] == 400


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "nan", "inf"])
@pytest.mark.parametrize("media", [NDJSON, CSV, VW, LIBSVM])
def test_what_is_no_finite_number_is_refused_with_its_row(media, word):
    rows = {NDJSON: '{"x": {"1": %s}, "y": 1}', CSV: "%s,0.5,,1", VW: "1 | 1:%s", LIBSVM: "1 1:%s"}
    reasons = {
        NDJSON: "byte",
        CSV: "number",
        VW: "not a finite number",
        LIBSVM: "not a finite number",
    }
    assert_one_bad(media, rows[media] % word, reasons[media])


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_finite_number_is_no_json(word):
    status, detail = refused(JSON, GOOD[JSON] % f'{{"x": {{"1": {word}}}, "y": 1}}, ')
    assert status == 400 and "byte" in detail


@pytest.mark.parametrize("media", [JSON, NDJSON, CSV, VW, LIBSVM])
def test_a_number_that_no_float_holds_is_refused_with_its_row(media):
    for number in ("1e999", "-1e999"):
        rows = {CSV: f"{number},0.5,,1", VW: f"1 | 1:{number}", LIBSVM: f"1 1:{number}"}
        row = rows.get(media, f'{{"x": {{"1": {number}}}, "y": 1}}')
        reasons = dict.fromkeys((CSV, VW, LIBSVM), "1e100")
        assert_one_bad(media, row, reasons.get(media, "out of range"))
    if media == JSON:
        assert_one_bad(JSON, '{"x": [1, 2, 3, 4, 1e999], "y": 1}', "out of range")
        assert_one_bad(JSON, '{"x": {"1": 1}, "y": 1e999}', "out of range")
        columns = read(JSON, '{"x": [[1, 2, 3, 4, 5], [1, 1e999, 3, 4, 5]], "y": [1, 0]}')
        assert columns.row_indices == [0] and columns.errors[0].pointer == "/x/1/1"


def test_what_is_no_finite_number_in_a_table_is_refused_with_its_row():
    for wrong in (float("nan"), float("inf"), -float("inf")):
        parsed = read(ARROW, stream_of(pa.table({"1": [1.0, wrong], "y": [1, 0]})))
        assert parsed.row_indices == [0] and [error.index for error in parsed.errors] == [1]


def test_duplicate_feature_is_refused_but_summed_in_vowpal_wabbit():
    twice = {
        JSON: '{"x": {"1": 1, "1": 2}, "y": 1}',
        NDJSON: '{"x": {"1": 1, "1": 2}, "y": 1}',
        VW: "1 | 1:1 1:2",
    }
    for media, row in (*twice.items(), (LIBSVM, "1 1:1 1:2")):
        assert_one_bad(media, row, "duplicated")
    table = pa.table([[1.0], [2.0], [1]], ["1", "1", "y"])
    tables = {CSV: b"1,1,y\n1,2,1\n", ARROW: stream_of(table)}
    for media, body in tables.items():
        assert refused(media, body)[0] == 422
    for media, body in tables.items():
        assert refused(media, body, HASHED)[0] == 422
    for media in (JSON, NDJSON):
        assert_one_bad(media, twice[media], "'1' is duplicated", HASHED)
    assert as_batch([read(VW, twice[VW], HASHED).rows]).values.tolist() == [3.0]


def test_rows_that_are_not_sorted_are_the_same_rows():
    turned = {
        JSON: GOOD[JSON].replace('"1": 1, "3": 0.5', '"3": 0.5, "1": 1') % "",
        NDJSON: GOOD[NDJSON].replace('"1": 1, "3": 0.5', '"3": 0.5, "1": 1'),
        CSV: "y,2,3,1\n1,,0.5,1\n0,2,,\n",
        VW: "1 | 3:0.5 1:1\n0 | 2:2\n",
        LIBSVM: "1 3:0.5 1:1\n0 2:2\n",
    }
    for media, body in turned.items():
        good = GOOD[JSON] % "" if media == JSON else GOOD[media]
        assert body != good
        same_rows(media, body, good)
    columns = {"1": [1.0, 0.0], "3": [0.5, 0.0], "2": [0.0, 2.0], "y": [1, 0]}
    table = pa.table(columns)
    same_rows(ARROW, stream_of(table.select(["y", "3", "2", "1"])), stream_of(table))


@pytest.mark.parametrize("media", LINES)
def test_line_ends_of_windows_and_a_missing_last_one_change_nothing(media):
    text = GOOD[media]
    windows = text.replace("\n", "\r\n")
    for body in (windows, windows.removesuffix("\r\n"), text.removesuffix("\n"), text + "\n"):
        same_rows(media, body, text)
    many = ROWS[media] * (4096 // len(ROWS[media]) + 1)
    head = "1,3,2,y\n" if media == CSV else ""
    expected = bits(read(media, head + many))
    for body in (many.replace("\n", "\r\n"), many.removesuffix("\n")):
        parsed = read(media, head + body)
        assert bits(parsed) == expected and not parsed.errors
    same_rows(JSON, (GOOD[JSON] % "").replace(", ", ",\r\n") + "\r\n", GOOD[JSON] % "")


ADVICE = {
    "NaN in JSON": (None, '{"x": {"1": NaN}, "y": 1}', "leave a missing value out"),
    "nan in a list": (None, '{"x": [1, nan, 0, 0, 0], "y": 1}', "leave a missing value out"),
    "infinity": (None, '{"x": {"1": -Infinity}, "y": 1}', "leave a missing value out"),
    "NaN in a line": (NDJSON, '{"x": {"1": NaN}, "y": 1}\n', "leave a missing value out"),
    "lines as JSON": (None, '{"x": {}, "y": 1}\n{"x": {}, "y": 0}\n', "application/x-ndjson"),
    "a document as lines": (NDJSON, '{\n"x": {},\n"y": 1\n}\n', "as application/json"),
    "a list as a line": (NDJSON, '[{"x": {}, "y": 1}]\n', "as application/json"),
    "a spreadsheet": (CSV, "PK\x03\x04\x14\0\x06\0", "ZIP archive, such as a spreadsheet"),
    "a Parquet file": (ARROW, "PAR1\x15\x04\x15\x10", "send its table as an Arrow stream"),
    "carriage returns": (CSV, "1,y\r1,1\r2,0\r", "end them with LF or CRLF"),
}


@pytest.mark.parametrize("case", ADVICE)
def test_a_body_of_another_form_is_refused_with_advice(client, case):
    media, body, advice = ADVICE[case]
    client.put("/models/m", json=INDEXED)
    headers = {"content-type": media or "application/json"}
    answer = client.post("/models/m/learn", content=body, headers=headers)
    assert answer.status_code in (400, 422)
    assert advice in answer.json()["detail"]


def test_advice_is_not_given_for_other_faults(client):
    client.put("/models/m", json=INDEXED)
    for body in ('{"x": {}, "y": 1}x', '{"x": {"1": n}, "y": 1}', '{"x": {}, "y": 1'):
        detail = client.post("/models/m/learn", content=body).json()["detail"]
        assert ";" not in detail, detail
    quoted = '1,"2\r",y\n1,1,1\n'
    headers = {"content-type": CSV}
    answer = client.post("/models/m/learn", content=quoted, headers=headers)
    assert "CRLF" not in answer.json().get("detail", "")


def test_a_name_that_is_repeated_is_refused_in_specs_members_and_tensors(client):
    one = '"shape": [1], "datatype": "FP64", "data": [1]'
    cases = [
        ("PUT", "/models/m", '{"algorithm": "sgd", "algorithm": "rda"}'),
        ("PUT", "/models/m", '{"features": {"kind": "hashed", "bits": 9, "bits": 10}}'),
        ("PUT", "/models/m", '{"algorithm": "sgd", "\\u0061lgorithm": "rda"}'),
        ("POST", "/specs/resolve", '{"task": "binary", "task": "regression"}'),
        ("POST", "/models/p/members", '{"algorithm": "sgd", "rho": 1, "rho": 2}'),
        ("POST", "/v2/models/p/infer", f'{{"inputs": [{{"name": "a", "name": "b", {one}}}]}}'),
        ("POST", "/v2/models/p/infer", f'{{"inputs": [{{"name": "a", {one}, "data": [2]}}]}}'),
    ]
    assert client.put("/models/p", json={"features": "hashed"}).status_code == 201
    for method, path, body in cases:
        answer = client.request(method, path, content=body)
        assert answer.status_code == 422 and "is duplicated" in answer.json()["detail"], body
    assert client.get("/models/m").status_code == 404


def test_two_labels_that_are_one_when_composed_are_refused(client):
    labels = ["caf\u00e9", "cafe\u0301"]
    detail = assert_problem(client.put("/models/m", json={"labels": labels}), 422, "invalid-spec")
    assert "two different strings" in detail["detail"]
