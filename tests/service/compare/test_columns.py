"""The table of the peers has what the file has: 0 and missing are two things."""

import json

import numpy as np
import pytest

from dualstream.client import BadInput
from dualstream.service.compare.columns import TableColumns, table_spec
from dualstream.service.compare.file_rows import declared
from dualstream.service.features.infer.sample import Sample
from dualstream.solvers import resolve_spec
from tests.service.compare.support import COLORS, read, samples, written


def test_the_table_has_numbers_flags_and_categories(tmp_path):
    rows = samples(600)
    rows[3]["x"] = 0
    rows[4]["x"] = 1_700_000_000_001  # milliseconds: 4 bytes would not tell them apart
    got = read(written(tmp_path, rows))
    names = got.columns.names
    assert set(names) == {"at.hour.sin", "at.hour.cos", "at.weekday", "x", "color", "member"}
    table = got.rows.table(0, 600)
    x = np.array([np.nan if row["x"] == "" else row["x"] for row in rows], np.float64)
    np.testing.assert_array_equal(table[:, names.index("x")], x)
    assert np.isnan(x).any() and x[3] == 0.0
    member = [row["member"] == "true" for row in rows]
    np.testing.assert_array_equal(table[:, names.index("member")], member)
    codes = table[:, names.index("color")]
    for color in COLORS:
        assert (
            len({code for code, row in zip(codes, rows, strict=True) if row["color"] == color}) == 1
        )
    assert len(set(codes.tolist())) == 3
    hours = 2 * np.pi * np.array([int(row["at"][11:13]) for row in rows]) / 24
    np.testing.assert_allclose(table[:, names.index("at.hour.sin")], np.sin(hours), atol=1e-6)
    assert [name for name, one in zip(names, got.columns.categories, strict=True) if one] == [
        *(name for name in names if name in ("at.weekday", "color"))
    ]


def test_labels_and_encoded_rows_are_those_of_the_file(tmp_path):
    rows = samples(300)
    got = read(written(tmp_path, rows))
    assert got.rows.labels(0, 300).tolist() == [1.0 if r["label"] == "yes" else -1.0 for r in rows]
    batch = got.rows.batch(100, 103)
    assert len(batch) == 3 and batch.labels.tolist() == got.rows.labels(100, 103).tolist()
    many = read(written(tmp_path, samples(300, task="multiclass")))
    batch = many.rows.batch(50, 250)
    names = [json.loads(batch.classes[int(label)]) for label in batch.labels]
    assert names == [row["label"] for row in samples(300, task="multiclass")[50:250]]
    # A class gets its index when it appears, as in a request.
    assert [int(one) for one in dict.fromkeys(batch.labels.tolist())] == [0, 1, 2]


def test_rows_are_sorted_by_time_and_equal_times_keep_their_order(tmp_path):
    rows = [row | {"number": at % 450} for at, row in enumerate(samples(900))]
    expected = sorted(rows, key=lambda row: row["at"])
    for folder, content in (("a", rows), ("b", expected)):
        (tmp_path / folder).mkdir()
        got = read(written(tmp_path / folder, content), time="at")
        at = got.columns.names.index("number")
        numbers = got.rows.table(0, 900)[:, at].astype(int).tolist()
        assert numbers == [row["number"] for row in expected]
        assert np.all(np.diff(got.rows.times) >= 0.0)
        assert got.rows.labels(7, 9).tolist() == [
            1.0 if row["label"] == "yes" else -1.0 for row in expected[7:9]
        ]
        single, whole = got.rows.batch(7, 8), got.rows.batch(0, 900)
        np.testing.assert_array_equal(single.indices, whole[7:8].indices)
        np.testing.assert_array_equal(single.values, whole[7:8].values)


def test_rows_without_a_time_are_refused(tmp_path):
    rows = samples(200)
    rows[5]["at"] = ""
    got = read(written(tmp_path, rows), time="at")
    assert (len(got.rows), got.refused, got.reasons) == (199, 1, ["column 'at' is missing"])


def test_rows_can_be_sorted_by_numbers(tmp_path):
    rows = [row | {"step": 900 - at} for at, row in enumerate(samples(200))]
    got = read(written(tmp_path, rows), time="step")
    assert got.rows.times.tolist() == sorted(row["step"] for row in rows)
    rows[0]["step"] = 0
    assert read(written(tmp_path, rows), time="step").rows.times[0] == 0.0


def test_texts_lists_and_undeclared_columns_fit_into_no_table(tmp_path):
    columns = {"label": "y", "types": {"a": "number", "t": "text"}, "unknown": "ignore"}
    assert table_spec(resolve_spec({"columns": columns})) is None
    assert table_spec(resolve_spec({"columns": {"label": "y"}})) is None
    path = tmp_path / "rows.ndjson"
    lists = [{"tags": ["p", "q"], "a": at, "y": at % 2} for at in range(100)]
    path.write_text("\n".join(map(json.dumps, lists)))
    got = read(str(path), label="y")
    assert got.columns is None and got.why_no_table == "a column has lists"
    assert len(got.rows.features) == 2  # p and q: `a` has a different number in each row


def test_many_categories_share_one_code(monkeypatch):
    monkeypatch.setattr("dualstream.service.compare.columns.MAX_CATEGORIES", 2)
    spec = {"columns": {"label": "y", "types": {"c": "category"}, "unknown": "ignore"}}
    columns = TableColumns(table_spec(resolve_spec(spec)))
    columns.learn_names([(number, f"c={number}") for number in range(5)])
    assert [columns._role(f"c={number}")[2] for number in range(5)] == [0, 1, 2, 2, 2]


def test_a_declared_specification_names_columns_of_the_file():
    sample = Sample([{"a": 1, "y": 0}])
    spec = {"columns": {"label": "y", "types": {"a": "number"}}}
    assert declared(spec, sample, None, None)["columns"]["unknown"] == "ignore"
    assert "unknown" not in declared({"columns": {"label": "y"}}, sample, None, None)["columns"]
    assert declared(spec, sample, None, None)["columns"]["label"] == "y"
    assert declared(spec, sample, None, "regression")["task"] == "regression"
    with pytest.raises(BadInput, match="there is no column 'z'; the columns are a, y"):
        declared(spec, sample, "z", None)
    with pytest.raises(BadInput, match="--columns must be a specification with `columns`"):
        declared({}, sample, None, None)
    with pytest.raises(BadInput, match="--columns: columns.types: a must be one of"):
        declared({"columns": {"types": {"a": "nothing"}}}, sample, None, None)
