"""Every format of learn and predict: the same rows give the same bits, bad rows are named."""

import json

import pytest

from service.codecs import Door, as_batch, parse_body
from service.codecs.door import LONGEST_NAME
from service.feature_names import FeatureNames
from solvers import resolve_spec
from tests.service.conftest import assert_problem

NDJSON = "application/x-ndjson"
INDEXED = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 5}}
HASHED = {"algorithm": "dual_ascent", "features": {"kind": "hashed", "bits": 10}}


def door_of(spec: dict) -> Door:
    return Door(resolve_spec(spec))


def bits(intake) -> dict:
    """All that a model sees of the rows, and of the names that ride along."""
    batch = as_batch([intake.rows])
    names = FeatureNames()
    names.keep(intake.names)
    told = {name: column.tobytes() for name, column in names.state().items()}
    columns = ("indptr", "indices", "values", "labels", "weights")
    return told | {name: getattr(batch, name).tobytes() for name in columns} | {"c": batch.classes}


def learn(client, body: str | bytes, media: str, path: str = "/models/m/learn"):
    return client.post(path, content=body, headers={"content-type": media})


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\n", "\n\n \t\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_marks_are_no_part_of_rows(ending, last, mark):
    lines = ['{"x": {"1": 1}, "y": 1}', "", '{"x": [0, 0, 1, 0, 2.5], "y": 0, "weight": 2}']
    body = mark + ending.join(lines) + last
    intake = parse_body(door_of(INDEXED), NDJSON, body.encode(), labelled=True)
    expected = {"samples": [json.loads(line) for line in lines if line]}
    same = parse_body(door_of(INDEXED), None, json.dumps(expected).encode(), labelled=True)
    assert intake.count == 2 and bits(intake) == bits(same)


@pytest.mark.parametrize(
    ("line", "pointer", "reason"),
    [
        ('{"x": {"1": 1}, "y": 1', "", "truncated"),
        ('{"x": {"1": NaN}, "y": 1}', "", "byte 12"),
        ('{"x": {"1": 1e999}, "y": 1}', "/x/1", "out of range"),
        ('{"x": {"1": null}, "y": 1}', "/x/1", "null"),
        ('{"x": {"1": null, "1": 1}, "y": 1}', "/x/1", "null"),
        ('{"x": {"1": 1, "2": [1]}, "y": 1}', "/x/2", "array"),
        ('{"x": [1, 2], "y": 1}', "/x", "2 numbers"),
        ('{"x": {"1000000000": 1}, "y": 1}', "/x/1000000000", "above dim 5"),
        ('{"x": {"1": 1, "1": 2}, "y": 1}', "", "'1' is there twice"),
        ('{"x": {"1": 1}, "y": 1, "y": 0}', "", "'y' is there twice"),
        ('{"x": {"1": 1}}', "/y", "missing"),
        ('{"x": {"1": 1}, "y": 3}', "/y", "not a label"),
        ('{"samples": []}', "", "unknown field"),
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
    intake = parse_body(door_of(INDEXED), NDJSON, body, labelled=True)
    assert (list(intake.places), len(intake.errors)) == ([0, 2], 1)
    bad = intake.errors[0]
    assert (bad.index, bad.line, bad.pointer) == (1, 3, pointer) and reason in bad.reason


def test_names_that_stand_twice_are_summed_in_order_where_hashed():
    text = '{"x": {"a": 0.1, "x": 1, "a": 0.2, "c": "t", "a": 0.3, "c": "t"}, "y": 1}'
    summed = {"x": {"a": 0.1 + 0.2 + 0.3, "x": 1, "c=t": 2}, "y": 1}
    expected = parse_body(door_of(HASHED), None, json.dumps(summed).encode(), labelled=True)
    for media, body in ((NDJSON, text), (None, text), (None, f'{{"samples": [{text}]}}')):
        assert bits(parse_body(door_of(HASHED), media, body.encode(), labelled=True)) == bits(
            expected
        )


def test_what_sums_to_more_than_a_number_may_be_is_refused():
    body = b'{"x": {"a": 1e100, "b": 1, "a": 1e100}, "y": 1}'
    for media in (NDJSON, None):
        intake = parse_body(door_of(HASHED), media, body, labelled=True)
        assert "add up" in intake.errors[0].reason and not intake.places


def test_bad_lines_come_back_beside_what_was_learned(client):
    client.put("/models/m", json=HASHED)
    long = "n" * (LONGEST_NAME + 1)
    lines = ['{"x": {"a": 1}, "y": 1}', "{", "", json.dumps({"x": {long: 1}, "y": 1})]
    told = learn(client, "\n".join(lines), NDJSON).json()
    assert (told["count"], told["rejected"]) == (1, 2)
    assert [(error["index"], error["line"]) for error in told["errors"]] == [(1, 2), (2, 4)]
    many = learn(client, "\n".join(["{"] * 150), NDJSON)
    told = assert_problem(many, 422, "invalid-rows")
    assert told["rejected"] == 150 and len(told["errors"]) == 100 and "line 1" in told["detail"]
    assert_problem(
        learn(client, "\n".join(lines), NDJSON, "/models/m/learn?atomic=1"), 422, "invalid-rows"
    )
    told = learn(
        client, '{"x": {"a": 1}}\n{"x": {"b": "t"}, "y": null}', NDJSON, "/models/m/predict"
    ).json()
    assert len(told["scores"]) == 2
