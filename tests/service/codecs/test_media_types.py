"""Media types and their parameters, delimiters of CSV, and encodings."""

import pytest

from dualstream.service.codecs import as_batch, media_type, parse_body
from dualstream.wire.chunking.chunks import CHUNK_BYTES
from dualstream.wire.problem_json import Problem
from tests.service.codecs.support import HASHED, INDEXED, learn, schema_of

CSV, VW, LIBSVM, NDJSON = "text/csv", "text/x-vw", "text/x-libsvm", "application/x-ndjson"
SPEC = HASHED | {"features": {"kind": "hashed", "bits": 20}}


@pytest.mark.parametrize("sign", [";", "\t"])
def test_a_delimiter_is_found_from_the_header(sign):
    comma = b'age,"a, b",city,y\n39,1,"Os;lo, ""x"" \tq",1\n,2,\n41,2,Rome,0\n'
    rows = [["age", '"a, b"', "city", "y"], ["39", "1", '"Os;lo, ""x"" \tq"', "1"], ["", "2", ""]]
    body = "\n".join(sign.join(row) for row in [*rows, ["41", "2", "Rome", "0"]]).encode()
    for filler in (0, 500):
        expected, result = (
            parse_body(
                schema_of(SPEC), CSV, text + b"\n" + end.encode() * filler, labelled=labelled
            )
            for labelled in (True,)
            for text, end in ((comma, "1,1,x,1\n"), (body, sign.join("11x1") + "\n"))
        )
        assert (
            as_batch([result.rows]).indices.tolist() == as_batch([expected.rows]).indices.tolist()
        )
        assert [error.index for error in result.errors] == [1]
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


def test_bodies_by_http_are_those_of_their_media_type(client):
    client.put("/models/m", json=SPEC)
    # Bodies of more than one chunk, in long rows.
    row = b'{"x": {"a": 1, "text": "%s"}, "y": 1}\n' % (b"t" * 100)
    for media in ("application/jsonl", "application/ndjson; charset=utf8"):
        for count in (4, 9_000):
            assert learn(client, count * row, media).json()["count"] == count
    semicolons = b"city;a;y\n" + b'"Os;lo\n""%s";1;1\n' % (b"o" * 100) * 10_000
    named = semicolons.replace(b";", b"|").replace(b"Os|lo", b"Os;lo")
    assert min(len(count * row), len(named)) > CHUNK_BYTES
    for media, body in ((CSV, semicolons), ("text/csv; delimiter=%7C", named)):
        learned = learn(client, body, media).json()
        assert (learned["count"], learned.get("rejected")) == (10_000, 0), learned
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
