"""Readers by kernel against the slow and obvious ones: the same rows, names and reasons."""

import json
import random
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

from dualstream.service.codecs import RowSchema, as_batch, parse_body
from dualstream.service.codecs.csv import RecordReader
from dualstream.service.codecs.ndjson import SampleReader
from dualstream.service.codecs.record_reader import parse_quickly
from dualstream.service.codecs.vw import ExampleReader
from dualstream.solvers import resolve_spec
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.rows.hashing import hash_names
from dualstream.solvers.rows.text.index_table import IndexTable
from dualstream.solvers.rows.text.tokens import hash_bytes, sort_stably
from tests.fuzzing import examples
from tests.service.codecs.line_strategies import (
    SCHEMAS,
    SPECS,
    assert_same,
    encoded,
    flags,
    good_numbers,
    good_samples,
    labels_of,
    many_schemas,
    names,
    numbers,
    spaces,
    strange_samples,
)
from tests.service.codecs.support import HASHED

MANY = examples(80)


@st.composite
def json_lines(draw, schema):
    line = draw(st.one_of(good_samples(schema), good_samples(schema), strange_samples(), spaces))
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(line)))
        put = draw(st.sampled_from(['"', ",", "}", "\\", "\x00", ":", " ", "\udcff"]))
        line = line[:at] + put + line[at + draw(st.integers(0, 1)) :]
    return line


@given(many_schemas, st.data(), flags, flags)
@MANY
def test_ndjson_by_kernel_is_ndjson_line_by_line(schema, data, labelled, has_end):
    lines = data.draw(st.lists(json_lines(schema), max_size=6))
    body = encoded("\n".join(lines) + "\n" * has_end)
    assert_same(SampleReader, schema, body, labelled)


@given(
    many_schemas,
    st.binary(max_size=40) | st.text('{}[]",:xy1.0e-\\ \n', max_size=40).map(str.encode),
)
@MANY
def test_any_bytes_as_ndjson(schema, body):
    assert_same(SampleReader, schema, body)


@pytest.mark.parametrize(
    "known", [["age", "a city", "é", "k=v", "n" * 30, "m" * 24], [*map(str, range(1500))]]
)
def test_rows_that_repeat_names_and_texts_are_read_as_any_others(known):
    """A stream: names in any order, some more than are remembered, and faults in between."""
    rng = random.Random(0)
    kept = [letter * n for letter in ("a", "é", "b") for n in (0, 1, 7, 8, 9, 16, 23, 24, 25, 40)]
    faults = [("", ""), ("", ""), ("", ""), ('"', ""), (",", ""), (", ", ",  "), ('": ', '" :')]
    lines = [json.dumps({"x": dict.fromkeys(known, "a"), "y": 1})]
    for _ in range(60 if DISABLED else 400):
        keys = rng.sample(known, rng.randrange(1, 7)) if rng.random() < 0.5 else known[:6]
        x = {key: rng.choice([rng.choice(kept), 1.5, -2, True]) for key in keys}
        sample = json.dumps({"x": x, "y": rng.choice([1, -1])}, ensure_ascii=False)
        lines.append(sample.replace(*rng.choice(faults), 1))
    assert_same(SampleReader, RowSchema(resolve_spec(HASHED)), "\n".join(lines).encode())


looks = ["true", "false", " 1", "1 ", " true", "\t7", "11th", "2024-01-05", "1e", "-", "e5", ""]
texts = ["", "Oslo", "ham", "späm", "a b", "\udcff", "a\x00", "a\rb", 'a"b', "1", "-1", "+1"]
plain = st.one_of(numbers, st.sampled_from(looks), st.sampled_from(texts), names)
broken = st.sampled_from(['"a', '"a"b', '""', '"a""b"', '"a\nb"', '"a,b"', '"'])
in_quotes = plain.map(lambda text: '"' + text.replace('"', '""') + '"')


@st.composite
def tables(draw, schema, delimiter=","):
    """CSV of some columns; most records have as many fields, most of them good ones."""
    some = (
        ["a", "city", "é", "a=b", "true", "e\u0301e", "n" * 400]
        if schema.is_hashed
        else ["1", "2", "5"]
    )
    header = draw(st.lists(st.sampled_from(some), max_size=4, unique=True))
    extras = [["y"], ["label", "weight"], ["y", "weight"], ["y"], ["weight", "y", "id"]]
    header = draw(st.permutations([*header, *draw(st.sampled_from(extras))]))
    good = good_numbers | st.sampled_from(looks) if schema.is_hashed else good_numbers
    usual = {"y": st.sampled_from(labels_of(schema)), "weight": st.sampled_from(["2", "", "0.5"])}
    usual |= {"label": usual["y"], "id": st.sampled_from(["", "", "a", "7"])}
    records = [delimiter.join(header)]
    for _ in range(draw(st.integers(0, 5))):
        record = [draw(usual.get(name, good)) for name in header]
        kind = draw(st.integers(0, 9))
        if kind == 0:
            record.append(draw(plain))
        elif kind < 4:
            at = draw(st.integers(0, len(record) - 1))
            record[at] = draw([broken, plain, in_quotes][kind - 1])
        records.append(delimiter.join(record) if kind != 4 else draw(spaces))
    return draw(st.sampled_from(["\n", "\r\n"])).join(records) + draw(st.sampled_from(["", "\n"]))


@given(many_schemas, st.data(), flags)
@MANY
def test_csv_by_kernel_is_csv_record_by_record(schema, data, labelled):
    delimiter = data.draw(st.sampled_from([",", ",", ";", "\t", "|"]))
    body = encoded(data.draw(tables(schema, delimiter)))
    reader = partial(RecordReader, delimiter=delimiter)
    # Where ids are read, no kernel is asked.
    assume(not labelled or reader(schema, body, labelled).columns.id is None)
    assert_same(reader, schema, body, labelled)


@given(st.text('1,y"a\n\r .', max_size=30), flags)
@MANY
def test_any_records_of_csv(text, labelled):
    for schema, header in ((SCHEMAS[0], "1,y,2\n"), (SCHEMAS[1], "a,weight,y\n")):
        assert_same(RecordReader, schema, encoded(header + text), labelled)
    for schema in SCHEMAS[:2]:
        assert_same(RecordReader, schema, encoded("1\n" + text), labelled=False)


gaps = st.sampled_from([" ", " ", "  ", "\t"])
vw_names = st.sampled_from(["6", "05", "a^b", "'", "n" * 1020, "n" * 1023, "é:", "a:1:2", ""])


@st.composite
def good_examples(draw, schema):
    """A line that most models take."""
    head = [draw(st.sampled_from(labels_of(schema))), draw(st.sampled_from(["", "", "2", "0.5"]))]
    head.append(draw(st.sampled_from(["", "", "'tag", "'"])))
    line = draw(gaps).join(part for part in head if part) + draw(st.sampled_from([" ", "  "]))
    spaces_of = ["", "", "ns", "é", "ns:0.5", "1"] if schema.is_hashed else ["", ""]
    keys = st.sampled_from(["a", "city=Oslo", "é", "a=b", "1", "2"])
    keys = keys if schema.is_hashed else st.sampled_from(["1", "2", "3", "4", "5"])
    for space in draw(st.lists(st.sampled_from(spaces_of), min_size=1, max_size=3)):
        line += "|" + space
        for name in draw(st.lists(keys, max_size=4, unique=not schema.is_hashed)):
            value = draw(st.sampled_from(["", ":1", ":-0.5"]) | good_numbers.map(":{}".format))
            line += draw(gaps) + name + value
        line += draw(gaps)
    return line


@st.composite
def strange_examples(draw):
    """A line that few models take."""
    head = [draw(st.sampled_from(["1", "ham", "2.5", "+1", "", "1:2"]) | numbers)]
    head.append(draw(st.sampled_from(["", "-1", "x", "'t", "+2"]) | numbers))
    head.append(draw(st.sampled_from(["", "'tag", "tag", "'", "1"])))
    line = draw(gaps).join(head) + draw(st.sampled_from(["", " "]))
    for space in draw(st.lists(st.sampled_from(["", "ns", ":2", "ns:", "ns:-1e-3"]), max_size=3)):
        line += "|" + space
        for name in draw(st.lists(vw_names | st.sampled_from(["a", "1"]), max_size=4)):
            value = draw(st.sampled_from(["", ":", ":x"]) | numbers.map(":{}".format))
            line += draw(gaps) + name + value
        line += draw(st.sampled_from(["", " ", "\r", "\x00", "\udcff"]))
    return line


@given(many_schemas, st.data(), flags, st.sampled_from(["\n", "\r\n"]))
@MANY
def test_vw_by_kernel_is_vw_line_by_line(schema, data, labelled, ending):
    lines = st.one_of(good_examples(schema), good_examples(schema), strange_examples(), spaces)
    body = encoded(ending.join(data.draw(st.lists(lines, max_size=6))))
    assert_same(ExampleReader, schema, body, labelled)


@given(many_schemas, st.text("1 '|a:.5\n\t", max_size=40) | st.text(max_size=20), flags)
@MANY
def test_any_text_as_vw(schema, text, labelled):
    assert_same(ExampleReader, schema, text.encode(), labelled)


@given(st.lists(st.binary(max_size=40), max_size=8))
@MANY
def test_bytes_are_hashed_as_names_are(pieces):
    expected = [np.uint8(list(piece) + [0]) for piece in pieces]
    results = [hash_bytes(piece, len(piece) - 1) & 0xFFFF for piece in expected]
    decoded = [piece.decode("latin-1") for piece in pieces]
    assert all(
        f == h
        for f, h, t in zip(results, hash_names(decoded, 16).tolist(), decoded, strict=True)
        if t.isascii()
    )


@given(st.lists(st.integers(0, 30), max_size=300))
@examples(60)
def test_rows_are_sorted_stably(keys):
    indices, values = np.array(keys, np.int32), np.arange(float(len(keys)))
    order = np.argsort(indices, kind="stable")
    expected = indices[order].tolist(), values[order].tolist()
    spare, kept = np.empty(len(keys), np.int32), np.empty(len(keys))
    sort_stably(indices, values, 0, len(keys), spare, kept)
    assert (indices.tolist(), values.tolist()) == expected


def test_a_table_of_places_holds_what_it_was_given():
    table, kept = IndexTable(), set()
    for first in range(0, 3000, 97):
        new = {(first * 7919 + k * k) % (2**28) for k in range(97)} - kept
        table.add(new)
        kept |= new
        assert set((~table.slots[table.slots != 0]).tolist()) == kept
        assert len(table.slots) >= 2 * len(kept)


def test_names_are_shown_once_and_again_after_a_loss():
    schema = RowSchema(resolve_spec(HASHED))
    body = b'{"x": {"a": 1, "city": "Oslo"}, "y": 1}\n' * 3
    first = parse_quickly(SampleReader(schema, body, True))
    assert [name for _, name in first.names] == ["a", "city=Oslo"]
    schema.mark_journalled(first.names)
    zero = body + b'{"x": {"b": 0, "a": 2}, "y": 0}'
    assert parse_quickly(SampleReader(schema, zero, True)).names == []
    more = parse_quickly(SampleReader(schema, zero + b'\n{"x": {"b": 2}, "y": 0}', True))
    assert [name for _, name in more.names] == ["b"]
    assert parse_quickly(SampleReader(schema, body, False)).names == []
    schema.resend_names()
    assert len(parse_quickly(SampleReader(schema, body, True)).names) == 2


@pytest.mark.skipif(DISABLED, reason="too many rows without a compiler")
@pytest.mark.parametrize("labels", [3, 5000])
def test_any_number_of_classes_comes_through(labels):
    schema = RowSchema(resolve_spec(SPECS[4]))
    lines = [json.dumps({"x": {"1": 1}, "y": f"c{k % labels}"}) for k in range(6000)]
    quick = parse_quickly(SampleReader(schema, "\n".join(lines).encode(), True))
    assert len(as_batch([quick.rows]).classes) == labels
    assert quick.labels == [f'"c{k % labels}"' for k in range(6000)]


def test_a_label_of_another_reduction_of_vowpal_wabbit_is_refused():
    labels = ("1:2", "2:1:0.5", "1:0.5 2:1")
    tried = [("multiclass", label) for label in (*labels, "1,3")]
    tried += [(task, label) for task in ("binary", "regression") for label in labels]
    for task, label in tried:
        schema = RowSchema(resolve_spec({"task": task}))
        parsed = parse_body(
            schema, "text/x-vw", f"{label} | a:1\n1 | a:1\n".encode(), labelled=True
        )
        (error,) = parsed.errors
        assert (error.index, error.pointer) == (0, "/y")
        assert "has costs, probabilities or several classes" in error.reason
        assert list(parsed.row_indices) == [1]
