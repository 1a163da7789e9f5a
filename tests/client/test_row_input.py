"""Rows that the client cannot send as they are meant: each is a BadInput that names the fault."""

from decimal import Decimal

import httpx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from msgspec import json

from dualstream.client import BadInput, Client
from dualstream.client.row_values import sample_line
from dualstream.client.rows import rows_of, samples_of

SENT: list[httpx.Request] = []
NETWORK = httpx.MockTransport(lambda request: SENT.append(request) or httpx.Response(500))
INF = float("inf")
TWO = [{"a": 1.0}, {"a": 2.0}]
TABLE = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
LONG = 2**53 + 1
DIGITS = "is beyond 2^53 and loses digits; send an id as a text (id7), a measurement as 1e17"
DOUBLED = pd.DataFrame([[1, 2, 3], [4, 5, 6]], columns=["a", "b", "a"])


@pytest.fixture
def client():
    SENT.clear()
    http = httpx.Client(base_url="http://x", transport=NETWORK)
    return Client(http=http, patience_s=0)


def test_integers_that_keep_their_digits_are_sent():
    rows = [
        {"x": {"a": 2**53, "b": -(2**53), "c": 1e17, "d": 12345678901234567.0}, "y": 1},
        {"x": {"a:9007199254740993": 1, "e": Decimal("9007199254740993.5")}, "id": LONG},
        {"x": [2**53, 1], "y": LONG, "id": "9007199254740993"},
    ]
    for row in rows:
        assert json.decode(sample_line(row)) == row | {"x": json.decode(json.encode(row["x"]))} or (
            b"9007199254740993.5" in sample_line(row)
        )


@pytest.mark.parametrize(
    ("x", "others", "why"),
    [
        ([{b"age": 39.0}] * 2, {}, "row 0: a feature's name must be a text, got bytes: b'age'"),
        ([{Decimal("1.5"): 1.0}] * 2, {}, "got Decimal"),
        ([{1.5: 1.0}] * 2, {}, "got float: 1.5"),
        ([{True: 1.0}] * 2, {}, "got bool"),
        ([{None: 1.0}] * 2, {}, "got NoneType"),
        ([{("a", 1): 1.0}] * 2, {}, "got tuple"),
        ([{1: 1.0, "1": 2.0}] * 2, {}, "two features have one name"),
        (np.ones((2, 2)), {"names": ["a", "a"]}, "the name 'a' is repeated"),
        (np.ones((2, 2)), {"names": [b"a", "b"]}, "got bytes: b'a'"),
        (np.ones((2, 2)), {"names": [1, "1"]}, "the name '1' is repeated"),
        (np.ones((2, 2)), {"names": ["a"]}, "2 values and 1 name"),
        (scipy.sparse.csr_array(np.ones((2, 2))), {"names": ["a", "a"]}, "'a' is repeated"),
        (DOUBLED, {}, "the column 'a' is repeated"),
        (DOUBLED, {"y": "b"}, "the column 'a' is repeated"),
        (DOUBLED, {"y": "a"}, "the column 'a' is repeated"),
        (TWO, {"y": 1}, "'y' must have one value per row, got 1"),
        (TWO, {"y": np.float64(1)}, "'y' must have one value per row"),
        (TWO, {"y": "ab"}, "'y' must have one value per row, got 'ab'"),
        (TWO, {"y": {"a": 1}}, "'y' must have one value per row"),
        (TWO, {"weight": 0.5}, "'weight' must have one value per row"),
        (TWO, {"ids": 7}, "'id' must have one value per row"),
        (TWO, {"ids": [b"k1", b"k2"]}, "row 0: the id b'k1' is bytes; send a text: id.decode()"),
        (TWO, {"ids": np.array([b"k1", b"k2"])}, "row 0: the id b'k1' is bytes"),
        (TABLE["a"], {}, "a Series is no table of rows"),
        (TABLE["a"].astype("string"), {}, "a Series is no table of rows"),
        (np.ones((2, 2, 2)), {}, "an array of 2 dimensions, got 3"),
        (scipy.sparse.coo_array(np.array([1.0, 2.0])), {}, "2 dimensions, got 1"),
        (scipy.sparse.csr_array(np.array([1.0, 2.0])), {}, "2 dimensions, got 1"),
        ([{"a": 1.0}, {"a": INF}], {}, "row 1: feature 'a' is not a finite number: inf"),
        ([[1.0, -INF], [1.0, 2.0]], {}, "row 0: feature 2 is not a finite number: -inf"),
        (np.array([[1.0, 2.0], [INF, 1.0]]), {}, "row 1: feature 1 is not a finite number"),
        (pd.DataFrame({"a": [1.0, INF]}), {}, "row 1: feature 'a' is not a finite number"),
        ([{"a": Decimal("-Infinity")}] * 2, {}, "row 0: feature 'a' is not a finite number"),
        ([{"a": np.float32("inf")}] * 2, {}, "row 0: feature 'a' is not a finite number"),
        (TWO, {"y": [1, INF]}, "row 1: the label is not a finite number"),
        (TWO, {"weight": [INF, 1]}, "row 0: the weight is not a finite number"),
        ([{"a": 1}, {"a": LONG}], {}, f"row 1: feature 'a': the integer {LONG} {DIGITS}"),
        ([{"a": -LONG}] * 2, {}, f"row 0: feature 'a': the integer -{LONG} {DIGITS}"),
        ([[1, LONG], [1, 2]], {}, f"row 0: feature 2: the integer {LONG} {DIGITS}"),
        (np.array([[LONG, 1], [1, 2]]), {}, f"row 0: feature 1: the integer {LONG} {DIGITS}"),
        (pd.DataFrame({"a": [1, LONG]}), {}, f"row 1: feature 'a': the integer {LONG} {DIGITS}"),
        ([{"a": np.uint64(2**64 - 1)}] * 2, {}, DIGITS),
        ([{"a": Decimal(LONG)}] * 2, {}, DIGITS),
        ([{"a": 10**60}] * 2, {}, DIGITS),
        (TWO, {"weight": [1, LONG]}, f"row 1: the weight: the integer {LONG} {DIGITS}"),
    ],
)
def test_rows_that_would_change_their_meaning_are_refused_by_name(client, x, others, why):
    others = {"y": [1, 0]} | others
    with pytest.raises(BadInput) as refused:
        client.learn("m", x, **others)
    assert why in str(refused.value), refused.value
    # Whether digits of a named value count depends on its column, which the server knows.
    is_named = DIGITS in why and "feature 1" not in why and "feature 2" not in why
    is_others = set(others) <= {"y", "names"} and type(others["y"]) is list
    if is_others and others["y"] == [1, 0] and not is_named:
        with pytest.raises(BadInput) as refused:
            client.predict("m", x, names=others.get("names"))
        assert why in str(refused.value)
    assert not SENT


@pytest.mark.parametrize("chance", [0.25, None])
@pytest.mark.parametrize("order", ["bg", "gb", "bgb", "bbgg", "ggb", "gbg", "bb"])
def test_predictions_of_several_requests_have_one_score_and_probability_per_row(order, chance):
    """b: no row of the request is valid; g: the first of two rows is scored, at seq 7 or later."""

    def answer(request: httpx.Request) -> httpx.Response:
        position = len(SENT)
        SENT.append(request)
        errors = [{"index": 1, "pointer": "/x", "reason": "bad"}]
        if order[position] == "b":
            problem = {"type": "/problems/invalid-rows", "title": "", "status": 422}
            both = [{**errors[0], "index": 0}, *errors]
            return httpx.Response(422, json=problem | {"rejected": 2, "errors": both})
        chances = None if chance is None else [chance, None]
        scores = {"scores": [0.5, None], "labels": [1, None], "probabilities": chances}
        counts = {"model": "m", "seq": 7 + position, "rejected": 1, "errors": errors}
        return httpx.Response(200, json=scores | counts)

    SENT.clear()
    http = httpx.Client(base_url="http://x", transport=httpx.MockTransport(answer))
    rows = [{"a": 1.0}] * (2 * len(order))
    result = Client(http=http).predict("m", rows, rows_per_request=2)
    assert result.seq == (7 + order.index("g") if "g" in order else 0)
    expected = [one for part in order for one in ((0.5, None) if part == "g" else (None, None))]
    assert result.scores == expected and len(result.labels) == len(expected)
    if chance is None and "g" in order:
        assert result.probabilities is None
    else:
        assert result.probabilities == [score and chance for score in expected]
    assert result.rejected == expected.count(None) == len(result.errors)


def test_labels_that_are_not_finite_are_refused_by_id(client):
    with pytest.raises(BadInput, match="the label of 'a' is not a finite number"):
        client.learn_labels("m", {"a": INF})
    assert not SENT


def test_duplicate_entries_of_a_sparse_matrix_are_added():
    entries = ([1.0, 2.0, 4.0, 8.0], ([0, 0, 1, 0], [1, 1, 0, 0]))
    twice = scipy.sparse.csr_array(
        (np.array([1.0, 2.0, 8.0, 4.0]), np.array([1, 1, 0, 0]), np.array([0, 3, 4])), shape=(2, 2)
    )
    before = twice.data.copy()
    for matrix in (twice, scipy.sparse.coo_array(entries, shape=(2, 2)), twice.tocsc()):
        assert list(rows_of(matrix)) == [{"1": 8.0, "2": 3.0}, {"1": 4.0}]
        assert list(rows_of(matrix, ["a", "b"])) == [{"a": 8.0, "b": 3.0}, {"a": 4.0}]
    assert twice.data.tolist() == before.tolist()


def test_a_series_as_a_row_keeps_its_names():
    rows = [row for _, row in TABLE.iterrows()]
    assert list(rows_of(rows)) == [{"a": 1.0, "b": 3.0}, {"a": 2.0, "b": 4.0}]
    assert list(rows_of([pd.Series([1.0, 2.0])])) == [[1.0, 2.0]]
    with pytest.raises(BadInput, match="'a' is repeated"):
        list(rows_of([pd.Series([1.0, 2.0], index=["a", "a"])]))


def test_names_that_are_numbers_are_indices_and_nan_is_missing():
    sample = {"x": {1: 0.5, np.int64(2): 1.0}, "y": 1}
    assert json.decode(sample_line(sample)) == {"x": {"1": 0.5, "2": 1.0}, "y": 1}
    line = sample_line({"x": {"a": float("nan"), "b": Decimal("NaN"), "null": "null"}, "y": 1})
    assert json.decode(line)["x"] == {"a": None, "b": None, "null": "null"}


def test_a_column_of_any_iterable_has_one_value_per_row():
    for y in ([1, 0], (1, 0), np.array([1, 0]), pd.Series([1, 0]), iter([1, 0]), range(2)):
        assert [one["x"] for one in samples_of(TWO, y)] == TWO
