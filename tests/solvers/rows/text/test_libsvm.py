"""LIBSVM text against a plain Python parser."""

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from dualstream.solvers import Batch
from dualstream.solvers.jit import DISABLED
from tests.fuzzing import examples
from tests.solvers.rows.text.plain_libsvm import DIM, assert_parsed_alike, number

EXAMPLES = examples(60 if DISABLED else 400)


DECIMALS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    st.floats(-1e6, 1e6).map("{:.6g}".format),
    st.integers(-(10**25), 10**25).map(str),
    st.from_regex(r"[+-]?[0-9]{0,22}\.?[0-9]{0,25}([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)
WORDS = st.sampled_from(
    "nan inf -Infinity 1_0 0x1p3 . + - e5 1e 1e+ 1.e2 .5 5. 00012 -0 -0.0 0e9 1e-400 1e400".split()
)
ODD_INDICES = st.sampled_from(["01", "1.0", "", "a", "000000000003", str(2**64 + 3)])
INDICES = st.one_of(st.integers(-1, DIM + 1).map(str), ODD_INDICES)
PAIRS = st.builds("{}:{}".format, INDICES, st.one_of(DECIMALS, WORDS))
USUAL = st.builds("{}:{}".format, st.integers(1, DIM), st.integers(0, 9))
TOKENS = st.one_of(
    USUAL, PAIRS, PAIRS, DECIMALS, WORDS, st.sampled_from(["spam", "1:2:3", ":", "é", "#"])
)
SPACES = st.sampled_from([" ", "  ", "\t", " \r"])
LINES = st.builds(lambda tokens, space: space.join(tokens), st.lists(TOKENS, max_size=5), SPACES)
ENDS = st.sampled_from(["\n", "\r\n", "\n\n", " # end 1:2\n"])
TEXTS = st.lists(st.tuples(LINES, ENDS).map("".join), max_size=6).map(
    lambda lines: "".join(lines).encode()
)


@EXAMPLES
@given(TEXTS, st.booleans())
@example(b"1 1:1", True)
@example(b"1 1:1\r", True)
@example(b"1 1:1 2:1 2:1\n1 2:1 1:1\n1 2:1 3:0\n1 1:1 9:1#", True)
@example(b"1 18446744073709551619:1\n1 1:1 0000000000003:2 4:", True)
@example(b"\n \r\n#\n1 2:1 1:3", True)
@example(b"1 1:1e101\n1 1:1e100", True)
@example(b"1e101 1:1", True)
@example(b"informal 1:1\n-INFINITY 1:1\ninfinitY 1:1\nInfini\xc3\xa9 1:1\nInf 1:1\ninflated", True)
def test_any_text_is_parsed_as_plain_python_does(text, labelled):
    assert_parsed_alike(text, labelled)


@EXAMPLES
@given(st.lists(DECIMALS, min_size=1, max_size=DIM))
def test_numbers_are_rounded_as_float_does(numbers):
    kept = [text for text in numbers if number(text.encode()) is not None]
    kept = [text for text in kept if abs(float(text)) <= 1e100 and float(text) != 0.0]
    line = "1 " + " ".join(f"{i + 1}:{text}" for i, text in enumerate(kept))
    values = Batch.from_libsvm(line.encode(), DIM).batch.values
    assert [x.hex() for x in values.tolist()] == [float(text).hex() for text in kept]


HALFWAY = st.builds(
    # The midpoint between two floats, and its neighbours: the hardest numbers to round.
    lambda x, off: (
        format((Decimal(x) + Decimal(math.nextafter(x, math.inf))) / 2, ".18g") if off else repr(x)
    ),
    st.floats(1e-20, 1e30),
    st.booleans(),
)


@EXAMPLES
@given(st.lists(HALFWAY, min_size=1, max_size=DIM))
def test_numbers_next_to_a_tie_are_rounded_as_float_does(numbers):
    numbers = [text if "e" in text or "." in text else text + "." for text in numbers]
    line = "1 " + " ".join(f"{i + 1}:{text}" for i, text in enumerate(numbers))
    values = Batch.from_libsvm(line.encode(), DIM).batch.values
    assert [x.hex() for x in values.tolist()] == [float(text).hex() for text in numbers]


@pytest.mark.parametrize(
    "text",
    [
        "9007199254740992",
        "9007199254740995.",
        "18014398509481988.",
        "18014398509481990.0",
        "36028797018963972e0",
        "900719925474099.75",
        "4503599627370497.5",
        "4503599627370498.5",
        "0.12345678901234567",
        "1.5e-22",
        "15e22",
        "123456789012345678e22",
        "123456789012345678e-22",
        "12345678901234567.8e-22",
        "9007199254740993.",
        "9007199254740993e0",
        "9007199254740991e22",
        "9007199254740991e-22",
        "1e23",
        "123456789012345678.",
        "1234567890123456789.",
        "0.000000000000000000000000123",
        "2.2250738585072011e-308",
        "5e-324",
        "0.1",
        "7.2057594037927933e16",
        "0.00000000000000000000000000001",
        "1" + "0" * 99 + ".",
        "0." + "0" * 200 + "1",
    ],
)
def test_hard_numbers_are_rounded_as_float_does(text):
    values = Batch.from_libsvm(f"1 1:{text}".encode(), 1).batch.values
    assert values.tolist() == [float(text)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("2:3 1:1", "no label before '2:3'"),
        ("nan 1:1", "the label 'nan' is not finite"),
        ("-INF 1:1", "the label '-INF' is not finite"),
        ("1e200 1:1", "the label is not finite or beyond 1e100"),
        ("1 0:1", "the index in '0:1' is below 1"),
        ("1 -4:1", "the index in '-4:1' is below 1"),
        ("1 10:1", "the index in '10:1' is above 9"),
        ("1 99999999999999999999:1", "the index in '99999999999999999999:1' is above 9"),
        ("1 1:1 2:x 3:1", "the value in '2:x' is not a finite number"),
        ("1 1:nan", "the value in '1:nan' is not a finite number"),
        ("1 1:", "the value in '1:' is not a finite number"),
        ("1 1: 2", "the value in '1:' is not a finite number"),
        ("1 1:1e101", "the number at index 1 is not finite or beyond 1e100"),
        ("1 1:1e999", "the number at index 1 is not finite or beyond 1e100"),
        ("1 3:1 3:2", "index 3 is duplicated"),
        ("1 3:1 2:1 3:0", "index 3 is duplicated"),
        ("1 1.5:1", "the index in '1.5:1' is not a whole number"),
        ("1 qid:3 1:1", "'qid:3': groups of a ranking (qid) are not supported; leave them out"),
        ("1 1:05", "the value in '1:05' is not a finite number"),
        (
            "1 1:9007199254740993",
            "the integer in '1:9007199254740993' is beyond 2^53 and loses digits;"
            " ids are not numbers",
        ),
        ("1 :3", "the index in ':3' is not a whole number"),
        ("1 2", "expected index:value, got '2'"),
        ("1 é:1", "the index in 'é:1' is not a whole number"),
    ],
)
def test_a_bad_line_is_set_aside_with_its_place_and_reason(line, reason):
    text = f"\n# a comment\n1 1:1\n{line}  # why\n-1 2:1\n".encode()
    parsed = Batch.from_libsvm(text, DIM)
    assert [(bad.row, bad.line, bad.reason) for bad in parsed.bad] == [(1, 4, reason)]
    assert parsed.rows.tolist() == [0, 2]
    assert parsed.batch.labels.tolist() == [1.0, -1.0]


def test_bad_lines_of_both_kinds_come_in_order():
    text = b"1 1:1e101\nx:1\n1 1:1 1:1\n1 a\n"
    parsed = Batch.from_libsvm(text, DIM)
    assert [(bad.row, bad.line) for bad in parsed.bad] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert len(parsed.batch) == 0


def test_text_labels_are_spans_of_the_text():
    text = "spam 1:1\n+1 2:1\nhäm\n".encode()
    parsed = Batch.from_libsvm(text, DIM)
    assert np.isnan(parsed.batch.labels).tolist() == [True, False, True]
    spans = [text[a:b].decode() for a, b in parsed.label_spans.tolist()]
    assert spans == ["spam", "+1", "häm"]


def test_unlabelled_lines_may_have_a_label_or_none():
    parsed = Batch.from_libsvm(b"1:2\n7 2:3\nspam 3:4\nnan\n", DIM, labelled=False)
    assert parsed.bad == []
    assert parsed.batch.indices.tolist() == [0, 1, 2]
    assert np.isnan(parsed.batch.labels).all()


def test_no_text_is_no_rows():
    for text in (b"", b"\n\n", b"# nothing", b"   "):
        parsed = Batch.from_libsvm(text, DIM)
        assert len(parsed.batch) == 0 and parsed.bad == []


def test_a_long_reason_is_cut():
    parsed = Batch.from_libsvm(b"1 1:" + b"x" * 10_000, DIM)
    assert len(parsed.bad[0].reason) < 120
