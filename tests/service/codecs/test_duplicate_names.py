"""A name twice in a JSON object refuses the row, or the body, in every reader."""

import json
from types import SimpleNamespace

import pytest

from dualstream.service.api.late_labels import _LabelRequest
from dualstream.service.codecs import parse_body
from dualstream.wire.problem_json import Problem
from tests.service.codecs.support import HASHED, schema_of

NDJSON = "application/x-ndjson"
SPEC = HASHED | {"features": {"kind": "hashed", "bits": 20}}
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
    ('{"y": 1, "x": {"abc": 1, "abc": 2}}', "abc"),
]


@pytest.mark.parametrize(("row", "name"), TWICE)
def test_a_name_twice_in_json_refuses_the_row(row, name):
    fillers = [f'{{"x": {{"w{n}": 1, "a": {n}}}, "y": 1}}' for n in range(1500)]
    results = []
    middle = [*fillers[:5], row, *fillers[:5]]
    for rows in ([row], [*fillers[:60], row], [*fillers, row], [row, *fillers], middle):
        for media, body in (
            (NDJSON, "\n".join(rows)),
            (None, f"[{', '.join(rows)}]"),
            (None, f'{{"samples": [{", ".join(rows)}]}}'),
        ):
            parsed = parse_body(schema_of(SPEC), media, body.encode(), labelled=True)
            assert [error.index for error in parsed.errors] == [rows.index(row)]
            results.append(parsed.errors)
    results.append(parse_body(schema_of(SPEC), None, row.encode(), labelled=True).errors)
    for errors in results:
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


def test_a_late_label_twice_is_refused():
    model = SimpleNamespace(row_schema=schema_of(SPEC))
    request = _LabelRequest(model, b'{"id": "a", "y": 1, "y": 0}', False)
    assert "'y' is duplicated" in request._bad[0].reason and not request.labels
    request = _LabelRequest(
        model, b'{"labels": [{"id": "a:b", "y": 1}, {"id": "b", "id": "c", "y": 1}]}', False
    )
    assert [label.id for label in request.labels] == ["a:b"] and "'id'" in request._bad[0].reason
    with pytest.raises(Problem, match="'labels' is duplicated"):
        _LabelRequest(model, b'{"labels": [], "labels": [{"id": "b", "y": 1}]}', False)
