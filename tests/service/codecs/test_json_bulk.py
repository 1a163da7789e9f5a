"""JSON of many rows by kernels against the exact way: the same rows, names and reasons."""

import json

import pytest
from hypothesis import event, given, strategies as st

from dualstream.service.codecs import RowSchema, parse_json
from dualstream.service.codecs.json_bulk import parse_quickly
from dualstream.service.codecs.json_exact import parse_exactly
from dualstream.solvers import resolve_spec
from dualstream.solvers.jit import DISABLED
from dualstream.wire.problem_json import Problem
from tests.fuzzing import examples
from tests.service.codecs.line_strategies import (
    SCHEMAS,
    encoded,
    flags,
    good_names,
    good_numbers,
    good_samples,
    hashed_names,
    labels_of,
    many_schemas,
    quoted,
    strange_samples,
    values,
)
from tests.service.codecs.support import HASHED, INDEXED, bits

MANY = examples(120)

spaces = st.sampled_from(["", "", "", " ", "\n", "\r\n\t "])


def outcome(parse, schema: RowSchema, body: bytes, labelled: bool):
    try:
        parsed = parse(schema, body, labelled)
    except Problem as problem:
        return problem.status, problem.body("/")
    if parsed is None:
        return None
    errors = [(e.index, e.line, e.pointer, e.reason) for e in parsed.errors]
    # A pointer to ids is asked for where a sample is known, and rows with ids are left to others.
    return bits(parsed), list(parsed.row_indices), errors, parsed.single


def assert_same(schema: RowSchema, body: bytes, labelled: bool = True) -> None:
    quick = outcome(parse_quickly, schema, body, labelled)
    event(f"read quickly: {quick is not None}")
    if quick is not None:
        assert quick == outcome(parse_exactly, schema, body, labelled)


def spoiled(draw, text: str) -> str:
    """The text, one time in six with something put into it."""
    if draw(st.integers(0, 5)) == 0:
        at = draw(st.integers(0, len(text)))
        put = draw(
            st.sampled_from(['"', ",", "}", "]", "\\", "\x00", ":", " ", "\n", "\udcff", "1"])
        )
        text = text[:at] + put + text[at + draw(st.integers(0, 1)) :]
    return text


@st.composite
def lists_of_samples(draw, schema):
    some = good_samples(schema)
    if draw(st.integers(0, 3)) == 0:
        some = some | strange_samples()
    samples = draw(st.lists(some, min_size=1, max_size=6))
    space = draw(spaces)
    inner = f"{space},{space}".join(samples)
    more = draw(st.sampled_from([""] * 9 + [',"x":1', ","]))
    text = f'{space}{{{space}"samples"{space}:{space}[{space}{inner}{space}]{more}{space}}}{space}'
    return spoiled(draw, text)


@st.composite
def columns(draw, schema):
    keys = hashed_names if schema.is_hashed else good_names
    what = good_numbers | (quoted if schema.is_hashed else st.nothing())
    objects = st.lists(st.tuples(keys, what), max_size=4, unique_by=lambda pair: pair[0]).map(
        lambda pairs: "{" + ",".join(f"{json.dumps(k)}: {v}" for k, v in pairs) + "}"
    )
    lists = st.lists(st.integers(-3, 3), min_size=5, max_size=5).map(json.dumps)
    x = objects if schema.is_hashed else objects | lists
    label = st.sampled_from(labels_of(schema))
    label = label.map(lambda y: json.dumps(y, ensure_ascii=False)) if schema.class_names else label
    cells = {
        "x": x,
        "y": label,
        "weight": st.sampled_from(["1", "0.5", "2"]),
        "ids": st.sampled_from(["null", '"a"', "7"]),
        "z": st.just("1"),
    }
    common = [["x", "y"], ["x", "y", "weight"]] * 4
    names = draw(st.sampled_from([*common, ["x"], ["x", "y", "ids"], ["x", "y", "z"], ["y", "y"]]))
    strange = draw(st.sampled_from([*names, *[""] * 8]))
    cells[strange] = cells.get(strange, label) | values
    n = draw(st.sampled_from([3, 1, 2, 6, 0]))
    space = draw(spaces)
    fields = []
    for name in draw(st.permutations(names)):
        size = n + (draw(st.integers(0, 30)) == 30)
        cell = f"{space},{space}".join(draw(cells[name]) for _ in range(size))
        fields.append(f'{space}"{name}"{space}:{space}[{space}{cell}{space}]{space}')
    return spoiled(draw, f"{space}{{{','.join(fields)}}}{space}")


@given(many_schemas, st.data(), flags)
@MANY
def test_lists_of_samples_by_kernel_are_those_of_the_typed_decoder(schema, data, labelled):
    assert_same(schema, encoded(data.draw(lists_of_samples(schema))), labelled)


@given(many_schemas, st.data(), flags)
@MANY
def test_columns_by_kernel_are_those_of_the_typed_decoder(schema, data, labelled):
    assert_same(schema, encoded(data.draw(columns(schema))), labelled)


OPENINGS = st.sampled_from(['{"samples":[{"x":{"a":', '{"samples":[{', '{"x":[{', '{"y":[1],"x":['])


@given(many_schemas, OPENINGS, st.text('{}[]",:xy1.0e-\\ \n', max_size=40), flags)
@MANY
def test_any_text_as_json_of_many_rows(schema, opening, text, labelled):
    assert_same(schema, (opening + text).encode(), labelled)


SAMPLES = [{"x": {"1": k, "3": k / 7}, "y": k % 2, "weight": 1 + k % 3} for k in range(100)]
AS_COLUMNS = {name: [sample[name] for sample in SAMPLES] for name in ("weight", "y", "x")}


@pytest.mark.parametrize("content", [{"samples": SAMPLES}, AS_COLUMNS], ids=["samples", "columns"])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("spec", [INDEXED, HASHED])
def test_usual_bodies_are_read_by_a_kernel(content, indent, spec):
    schema, body = RowSchema(resolve_spec(spec)), json.dumps(content, indent=indent).encode()
    result = outcome(parse_quickly, schema, body, True)
    assert result is not None and result == outcome(parse_exactly, schema, body, True)
    assert outcome(parse_json, schema, body, True) == result


def test_a_few_unusual_rows_are_read_on_their_own():
    """An escape, a number of many digits, labels not met before, a row that the model refuses."""
    odd = '{"x":{"\\u0031":1,"2":1.2345678901234567e-17},"y":1},{"x":{"9":1},"y":0},'
    body = json.dumps({"samples": SAMPLES}).replace("[", "[" + odd, 1).encode()
    for schema in (SCHEMAS[0], SCHEMAS[1]):
        result = outcome(parse_quickly, schema, body, True)
        assert result is not None and result == outcome(parse_exactly, schema, body, True)
    assert [e.pointer for e in parse_quickly(SCHEMAS[0], body, True).errors] == ["/samples/1/x/9"]
    columns = {
        "y": [2**50 + k % 2 for k in range(5)],
        "x": [[1.5e-30, 0, 0, 0, k] for k in range(5)],
    }
    classes = RowSchema(resolve_spec(INDEXED | {"task": "multiclass", "loss": "hinge"}))
    body = json.dumps(columns).encode()
    result = outcome(parse_quickly, classes, body, True)
    assert result is not None and result == outcome(parse_exactly, classes, body, True)


@pytest.mark.skipif(DISABLED, reason="too slow without a compiler")
def test_a_body_of_unusual_rows_is_left_to_the_typed_decoder():
    body = json.dumps({"samples": [{"x": {"1": 1.5e-30}, "y": 1}] * 100}).encode()
    assert parse_quickly(SCHEMAS[0], body, True) is None
    assert parse_json(SCHEMAS[0], body, True).count == 100
    # A string with no end: looked for once.
    body = b'{"samples":[' + b'{"x":{"1":"' + b'\\"' * 1_000_000
    assert parse_quickly(SCHEMAS[1], body, True) is None
