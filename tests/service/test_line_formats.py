"""Readers by kernel against the slow and obvious ones: the same rows, names and reasons."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.codecs import Door, as_batch, ndjson
from service.codecs.door import LONGEST_NAME
from solvers import hash_names, resolve_spec
from solvers._jit import DISABLED
from solvers.text import PlaceTable
from solvers.text._read import hash_bytes, sort_stably
from tests.fuzzing import examples
from tests.service.test_formats import HASHED, INDEXED, bits

SPECS = [
    INDEXED,
    HASHED,
    HASHED | {"labels": ["ham", "späm"]},
    HASHED | {"task": "regression", "loss": "squared"},
    INDEXED | {"task": "multiclass", "loss": "hinge"},
    {"algorithm": "dual_ascent", "features": {"kind": "hashed", "bits": 2}},
]
DOORS = [Door(resolve_spec(spec)) for spec in SPECS]
MANY = examples(150)

numbers = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.sampled_from("0 -0 -0.0 1 -1 1e5 1E-7 1e100 2e100 1e309 0.1e-400 NaN 01 1. .5 + 1e".split()),
)
words = st.sampled_from(["true", "false", "null", "tru", "Infinity", "{}", "[]", ""])
names = st.sampled_from(
    ["", "a", "b", "city", "1", "2", "5", "6", "05", "é", "x", "y", "a=b", "a:b", "n" * 40]
    + ["n" * n for n in (LONGEST_NAME - 1, LONGEST_NAME, LONGEST_NAME + 1)]
)
quoted = st.one_of(
    names.map(lambda s: json.dumps(s, ensure_ascii=False)), st.text(max_size=4).map(json.dumps)
)
values = st.one_of(numbers, numbers, quoted, words)
spaces = st.sampled_from(["", "", "", " ", "\t ", "\r"])


@st.composite
def objects(draw, keys, what, most):
    """The JSON of an object, or nearly so."""
    pairs = draw(st.lists(st.tuples(keys, what), max_size=most))
    space = draw(spaces)
    return "{" + f",{space}".join(f"{space}{k}{space}:{space}{v}{space}" for k, v in pairs) + "}"


@st.composite
def json_lines(draw):
    """A sample of some form, most often a good one."""
    x = draw(
        st.one_of(
            objects(quoted, values, 6),
            objects(quoted, quoted, 3),
            st.lists(numbers, min_size=5, max_size=5).map(lambda v: f"[{', '.join(v)}]"),
            st.dictionaries(st.sampled_from("12345"), st.integers(-9, 9), max_size=4).map(
                json.dumps
            ),
            values,
        )
    )
    y = draw(st.one_of(st.sampled_from(["1", "0", "-1", '"ham"', '"späm"', "true", "1.0"]), values))
    fields = [("x", x), ("y", y)]
    if draw(st.booleans()):
        fields.append(
            draw(
                st.tuples(
                    st.sampled_from(["weight", "weight", "x", "y", "id", "z", "wei"]), numbers
                )
            )
        )
    fields = draw(st.permutations(fields)) if draw(st.booleans()) else fields
    space = draw(spaces)
    line = (
        space
        + "{"
        + f"{space},{space}".join(f'{space}"{k}"{space}:{space}{v}' for k, v in fields)
        + "}"
        + space
    )
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(line)))
        line = (
            line[:at]
            + draw(st.sampled_from(['"', ",", "}", "\\", "\x00", ":", " ", "\udcff"]))
            + line[at + draw(st.integers(0, 1)) :]
        )
    return line


def outcome(intake) -> tuple:
    errors = [(e.index, e.line, e.pointer, e.reason) for e in intake.errors]
    return bits(intake), list(intake.places), errors


def assert_same(quickly, slowly, *arguments) -> None:
    quick, slow = quickly(*arguments), slowly(*arguments)
    if quick is None:
        assert slow.rows.ids
    else:
        assert outcome(quick) == outcome(slow)


@given(
    st.sampled_from(DOORS),
    st.lists(json_lines() | spaces, max_size=6),
    st.booleans(),
    st.booleans(),
)
@MANY
def test_ndjson_by_kernel_is_ndjson_line_by_line(door, lines, labelled, has_end):
    body = ("\n".join(lines) + "\n" * has_end).encode("utf-8", "surrogateescape")
    assert_same(ndjson.parse_quickly, ndjson.parse_slowly, door, body, labelled)


@given(
    st.sampled_from(DOORS),
    st.binary(max_size=40) | st.text('{}[]",:xy1.0e-\\ \n', max_size=40).map(str.encode),
)
@MANY
def test_any_bytes_as_ndjson(door, body):
    assert_same(ndjson.parse_quickly, ndjson.parse_slowly, door, body, True)


@given(st.lists(st.binary(max_size=40), max_size=8))
@MANY
def test_bytes_are_hashed_as_names_are(pieces):
    expected = [np.uint8(list(piece) + [0]) for piece in pieces]
    found = [hash_bytes(piece, len(piece) - 1) & 0xFFFF for piece in expected]
    decoded = [piece.decode("latin-1") for piece in pieces]
    assert all(
        f == h
        for f, h, t in zip(found, hash_names(decoded, 16).tolist(), decoded, strict=True)
        if t.isascii()
    )


@given(st.lists(st.integers(0, 30), max_size=300))
@examples(60)
def test_rows_are_sorted_stably(keys):
    indices, values = np.array(keys, np.int32), np.arange(float(len(keys)))
    order = np.argsort(indices, kind="stable")
    expected = indices[order].tolist(), values[order].tolist()
    spare, held = np.empty(len(keys), np.int32), np.empty(len(keys))
    sort_stably(indices, values, 0, len(keys), spare, held)
    assert (indices.tolist(), values.tolist()) == expected


def test_a_table_of_places_holds_what_it_was_given():
    table, held = PlaceTable(), set()
    for first in range(0, 3000, 97):
        new = {(first * 7919 + k * k) % (2**28) for k in range(97)} - held
        table.add(new)
        held |= new
        assert set(table.slots[table.slots >= 0].tolist()) == held
        assert len(table.slots) >= 2 * len(held)


def test_names_are_told_once_and_again_after_a_loss():
    door = Door(resolve_spec(HASHED))
    body = b'{"x": {"a": 1, "city": "Oslo"}, "y": 1}\n' * 3
    first = ndjson.parse_quickly(door, body, True)
    assert [name for _, name in first.names] == ["a", "city=Oslo"]
    door.told(first.names)
    more = ndjson.parse_quickly(door, body + b'{"x": {"b": 0, "a": 2}, "y": 0}', True)
    assert [name for _, name in more.names] == ["b"]
    assert ndjson.parse_quickly(door, body, False).names == []
    door.tell_names_again()
    assert len(ndjson.parse_quickly(door, body, True).names) == 2


@pytest.mark.skipif(DISABLED, reason="too many rows without a compiler")
@pytest.mark.parametrize("labels", [3, 5000])
def test_any_number_of_classes_comes_through(labels):
    door = Door(resolve_spec(SPECS[4]))
    lines = [json.dumps({"x": {"1": 1}, "y": f"c{k % labels}"}) for k in range(6000)]
    quick = ndjson.parse_quickly(door, "\n".join(lines).encode(), True)
    assert len(as_batch([quick.rows]).classes) == labels
    assert quick.labels == [f'"c{k % labels}"' for k in range(6000)]
