"""What is refused comes back in part: an answer is short however long what it refuses is."""

import json

import pyarrow as pa
import pytest

from dualstream.solvers import InvalidSpec, resolve_spec
from dualstream.wire.problem_json import (
    MAX_QUOTED,
    MAX_TEXT,
    Problem,
    RowError,
    beginning,
    quoted,
    shortened,
)
from tests.service.codecs.support import ARROW, CSV, HASHED, INDEXED, stream_of
from tests.service.conftest import SPEC

MAX_BYTES = 16_384
JSON, NDJSON = "application/json", "application/x-ndjson"
LIBSVM, VW = "text/x-libsvm", "text/x-vw"
LONG = "a" * 900_000
DIGITS = "9" * 900_000
# As much as httpx sends in a line, and what takes most bytes in JSON.
LONG_WORD = "a" * 60_000
CONTROLS = "\x01" * 20_000

SAMPLES = [  # of a model of features by index
    ({"x": {LONG: 1}, "y": 1}, "is not an index"),
    ({"x": {LONG: 0}, "y": 1}, "is not an index"),
    ({"x": {DIGITS: 1}, "y": 1}, "is above dim 5"),
    ({"x": {"1": LONG}, "y": 1}, "the value must be a number"),
    ({"x": {"1": 1}, "y": LONG}, "is not a label"),
    ({"x": {"1": 1}, "y": 1, LONG: 1}, "unknown field"),
    ({"x": {LONG: None}, "y": 1}, "null"),
    ({"x": {"1": 1}, "y": 1, "id": LONG}, "an id has"),
    ({"x": {"1": 1}, "y": CONTROLS}, "is not a label"),
    ({"x": {CONTROLS: 1}, "y": 1}, "is not an index"),
    ({"x": LONG, "y": 1}, "str"),
]
GOOD = {"x": {"1": 1}, "y": 1}
TWICE = '{"x": {"%s": 1, "%s": 1}, "y": 1}' % ((LONG[:400_000],) * 2)
ROWS = [
    *((INDEXED, JSON, json.dumps({"samples": [GOOD, row]}), why) for row, why in SAMPLES),
    *((INDEXED, NDJSON, f"{json.dumps(GOOD)}\n{json.dumps(row)}\n", why) for row, why in SAMPLES),
    (INDEXED, JSON, f'{{"samples": [{json.dumps(GOOD)}, {TWICE}]}}', "is duplicated"),
    (INDEXED, NDJSON, f"{json.dumps(GOOD)}\n{TWICE}\n", "is duplicated"),
    (INDEXED, JSON, json.dumps({"x": [{}, {LONG: 1}], "y": [1, 1]}), "is not an index"),
    (INDEXED, JSON, json.dumps({"x": [{}, {}], "y": [1, LONG]}), "is not a label"),
    (HASHED, JSON, json.dumps({"samples": [GOOD, {"x": {LONG: 1}, "y": 1}]}), "at most 1024"),
    (HASHED, JSON, json.dumps({"samples": [GOOD, {"x": {"a": LONG}, "y": 1}]}), "at most 1024"),
    (INDEXED, CSV, f"1,y\n1,1\n1,{LONG}\n", "is not a label"),
    (INDEXED, CSV, f"1,y\n1,1\n{LONG},1\n", "the value must be a number"),
    (INDEXED, CSV, f"1,y,weight\n1,1,1\n1,1,{LONG}\n", "the weight must be a number"),
    (HASHED, CSV, f"a,y\n1,1\n{LONG},1\n", "at most 1024"),
    (INDEXED, LIBSVM, f"1 1:1\n{LONG} 1:1\n", ""),
    (INDEXED, LIBSVM, f"1 1:1\n1 {DIGITS}:1\n", ""),
    (INDEXED, LIBSVM, f"1 1:1\n1 1:{LONG}\n", ""),
    (HASHED, VW, f"1 | a\n{LONG} | a\n", "is not a label"),
    (HASHED, VW, f"1 | a\n1 | {LONG}\n", "at most 1024"),
    (HASHED, VW, f"1 | a\n1 | a:{LONG}\n", "is not a number"),
]


def checked(answer, *words: str) -> dict:
    """A problem, or an answer that names the bad rows, which is short and says these."""
    assert answer.headers["content-type"] in (JSON, "application/problem+json"), answer.text[:300]
    assert len(answer.content) < MAX_BYTES, (len(answer.content), answer.text[:300])
    for word in words:
        assert word in answer.text, answer.text
    return answer.json()


def test_a_row_is_refused_in_few_words(client):
    client.put("/models/indexed", json=INDEXED)
    client.put("/models/hashed", json=HASHED)
    for spec, kind, body, why in ROWS:
        model = "hashed" if spec is HASHED else "indexed"
        headers = {"content-type": kind}
        answer = client.post(f"/models/{model}/learn", content=body, headers=headers)
        got = checked(answer)
        assert [error["index"] for error in got["errors"]] == [1], (kind, why, got)
        assert why in got["errors"][0]["reason"], (kind, why, got)
        atomic = client.post(f"/models/{model}/learn?atomic=true", content=body, headers=headers)
        assert why in checked(atomic)["detail"]


def test_a_body_is_refused_in_few_words(client):
    client.put("/models/indexed", json=INDEXED)
    client.put("/models/hashed", json=HASHED)
    stream = stream_of(pa.table({LONG: [1.0], "y": [1]}))
    for model, kind, body, why in (
        ("indexed", CSV, f"{LONG},y\n1,1\n", "column names must"),
        ("hashed", CSV, f"{LONG},y\n1,1\n", "column names must"),
        ("indexed", ARROW, stream, "column names must"),
        ("hashed", ARROW, stream, "column names must"),
        ("indexed", ARROW, stream_of(pa.table({"1": [1.0], "y": [LONG]})), "is not a label"),
        ("indexed", JSON, f'{{"samples": [], "{LONG}": 1}}', "unknown field"),
        ("indexed", JSON, f'{{"{LONG}": 1}}', "field"),
    ):
        answer = client.post(f"/models/{model}/learn", content=body, headers={"content-type": kind})
        assert answer.status_code == 422
        checked(answer, why)


def test_what_is_no_row_is_refused_in_few_words(client):
    client.put("/models/m", json=SPEC)
    for method, path, case, why in (
        ("PUT", "/models/n", SPEC | {LONG: 1}, "is not a known field"),
        ("PUT", "/models/n", SPEC | {"loss": LONG}, "loss must be"),
        ("PUT", "/models/n", SPEC | {"window": {"kind": "none", LONG: 1}}, "window"),
        ("PUT", "/models/n", SPEC | {"labels": [LONG, LONG]}, "labels"),
        ("PUT", "/models/n", {"members": [{LONG: 1}]}, "members"),
        ("PUT", "/models/n", {"members": LONG}, "members"),
        ("POST", "/specs/resolve", SPEC | {"loss": LONG}, "loss must be"),
        ("POST", "/specs/resolve", {LONG: 1}, "is not a known field"),
        ("POST", "/models/m/versions", {"name": LONG}, "a version's name"),
        ("POST", "/models/m/versions", {LONG: 1}, "/body/aaa"),
        ("POST", "/models/m/rollback", {"version": LONG}, "at most 128"),
        ("POST", "/models/m/refit", {"method": LONG}, "method"),
        ("POST", "/models/m/labels", {LONG: 1}, "unknown field"),
        ("POST", "/models/m/labels", {"id": LONG, "y": 1}, "an id has"),
        ("POST", "/models/m/labels", {"id": "a", "y": LONG}, "is not a label"),
        ("POST", "/models/m/learn", [LONG], "object"),
    ):
        checked(client.request(method, path, json=case), why)


def test_a_line_of_a_request_is_refused_in_few_words(client):
    client.put("/models/m", json=SPEC)
    for path, why in (
        (f"/models/{LONG_WORD}", "a model id has"),
        (f"/models/{LONG_WORD}/predict?x=1:1", "a model id has"),
        (f"/predict?model={LONG_WORD}&x=1:1", "a model id has"),
        (f"/{LONG_WORD}", "no such route"),
        (f"/models/m/predict?x=1:1&{LONG_WORD}=1", "unknown query parameter"),
        (f"/models/m/predict?x=1:1&min_seq={LONG_WORD}", "min_seq must be"),
        (f"/models/m/predict?x=1:1&version={LONG_WORD}", "no version"),
        (f"/models/m/predict?x={LONG_WORD}", "is not index:value"),
        (f"/models/m/predict?x=1:{LONG_WORD}", "is not a number"),
        (f"/models/m/predict?x.{LONG_WORD}=1", "is not an index"),
        (f"/models/m/predict?x.1={LONG_WORD}", "must be a number"),
        (f"/models/m/weights?top={LONG_WORD}", "top"),
        (f"/models/m/export?format={LONG_WORD}", "format"),
        (f"/models/m/versions/{LONG_WORD}", "no version"),
        (f"/audit?after={LONG_WORD}", "after"),
    ):
        checked(client.get(path), why)
    for name in ("content-type", "content-encoding", "idempotency-key"):
        headers = {"content-type": JSON, name: LONG_WORD}
        checked(client.post("/models/m/learn", content=b"{}", headers=headers))
    checked(client.put("/models/m", json=SPEC | {"rho": 0.5}, headers={"if-match": LONG_WORD}))


def test_what_is_short_is_shown_as_it_is():
    name = "é" * (MAX_QUOTED - 1) + "'"
    assert quoted(name) == repr(name) and beginning(name) == name
    assert quoted(name + "b") == repr(name) + "..." and beginning(name + "b") == name + "..."
    assert quoted(1.5) == "1.5" and quoted(None) == "None"
    text = "t" * MAX_TEXT
    assert shortened(text) == text == str(Problem(422, "invalid-rows", text))
    assert RowError(0, text, text).as_dict() == {"index": 0, "pointer": text, "reason": text}
    ends = shortened(f"begin{text}end")
    assert ends.startswith("begin") and ends.endswith("end") and len(ends) < MAX_TEXT / 2


def test_a_field_that_a_spec_does_not_know_is_quoted_in_part():
    said = r"^'a{76}\.\.\. is not a known field: it takes"
    with pytest.raises(InvalidSpec, match=said) as caught:
        resolve_spec(SPEC | {LONG: 1})
    assert len(str(caught.value)) < MAX_TEXT
