"""load_tests.records: the page is that of records.json, and peers are trained on past rows only."""

import subprocess

import numpy as np
import pytest

from dualstream.solvers import Batch, resolve_spec
from load_tests.markdown import DOCS
from load_tests.records import moa, stored
from load_tests.records.files import CLASSES, NUMBERS, PUBLISHED, Numbers
from load_tests.records.page import CLASS_COLUMNS, NUMBER_COLUMNS, limits, losses, page
from load_tests.records.peers import last_targets, retrained, with_last_label
from load_tests.streams.retrained import EARLY, EVERY


def test_page_is_that_of_the_stored_figures():
    assert (DOCS / "internals/records.md").read_text() == page(stored.read())


def test_stored_figures_name_existing_files_and_learners():
    records = stored.read()
    assert set(records["classes"]) == set(CLASSES)
    assert set(records["numbers"]) == set(NUMBERS)
    for line in records["classes"].values():
        assert set(line) <= set(CLASS_COLUMNS)
    for name, line in records["numbers"].items():
        assert set(line) | {"published"} == set(NUMBER_COLUMNS)
        for figures in line.values():
            assert figures[0] <= figures[1], name  # MAE <= RMSE
    for best in PUBLISHED.values():
        assert best.mae <= best.rmse


def test_every_learner_with_less_error_is_a_loss_and_a_run_without_a_figure_is_listed():
    line = {
        "full": [2.0, 30.0],
        "last label": [3.0],
        "river_arf": [1.5, 9.0],
        "moa_sgbt": "over 6 GB",
    }
    figures = {
        "one": {**line, "lightgbm": [1.0, 8.0]},
        "two": {"full": [0.1, 1.0], "river_arf": [0.2]},
    }
    assert losses(figures, "%", 0) == "- **one**, %: `lightgbm` 1, `river_arf` 1.5; `full` 2.\n"
    assert losses({"two": figures["two"]}, "%", 0) == ""
    whole = {name: dict.fromkeys(CLASS_COLUMNS, [1.0]) for name in CLASSES}
    assert limits(whole) == "- none.\n"
    whole["elec2"]["moa_sgbt"] = "over 6 GB"
    del whole["a9a"]["moa_arf_30"]
    assert limits(whole) == ("- elec2: `moa_sgbt` over 6 GB.\n- a9a: `moa_arf_30` not run.\n")


@pytest.mark.parametrize(("newest", "has_last"), [(None, False), (700, True)])
def test_numbers_are_predicted_by_models_of_past_rows(newest, has_last):
    rng = np.random.default_rng(0)
    rows = Numbers(rng.normal(size=(1234, 2)), (), rng.normal(size=1234))
    trained = []

    def train(past):
        trained.append(past)
        return lambda columns: columns[:, -1] + len(trained)

    predictions = retrained(train, rows, newest, has_last)
    ends = [*EARLY, EVERY, 2 * EVERY]
    assert [len(past.targets) for past in trained] == [min(end, newest or end) for end in ends]
    for past, end in zip(trained, ends, strict=True):
        np.testing.assert_array_equal(past.targets, rows.targets[:end][-len(past.targets) :])
    shown = last_targets(rows.targets) if has_last else rows.columns[:, -1]
    models = np.repeat(np.arange(1.0, 7.0), np.diff([*ends, 1234]))
    np.testing.assert_array_equal(predictions[EARLY[0] :], shown[EARLY[0] :] + models)
    assert predictions[20] == pytest.approx(rows.targets[:20].mean())


def test_last_label_is_a_column_of_the_next_row():
    rows = Batch.from_dense(np.ones((3, 1)), np.array([1.0, -1.0, 1.0]))
    np.testing.assert_array_equal(
        with_last_label(rows).values, [1.0, 1.0, 1.0, 1.0, -1.0]
    )  # row 1 has no last label, and zeros are not stored


def test_repeated_rows_are_left_out_where_they_repeat():
    rows = Numbers(np.array([[2.0], [1.0], [2.0], [2.0]]), (), np.array([5.0, 5.0, 5.0, 6.0]))
    result = rows.different()
    assert result.columns.ravel().tolist() == [2.0, 1.0, 2.0]
    assert result.targets.tolist() == [5.0, 5.0, 6.0]


def test_categories_are_declared_and_gaps_are_missing():
    x = np.array([[1.0, 4.0, 2.0], [0.0, np.nan, 3.0], [1.0, 6.0, 2.0]])
    rows = Numbers(x, (0, 2), np.arange(3.0))
    spec = resolve_spec({"task": "regression", "members": "full", **rows.declared()})
    assert spec["pairs"] is True
    batch = rows.batch(spec)
    assert np.diff(batch.indptr).tolist() == [3, 2, 3]
    assert sorted(batch.values.tolist()) == [1.0] * 6 + [4.0, 6.0]
    assert batch.labels.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (subprocess.TimeoutExpired("java", 900), "over 15 minutes"),
        (subprocess.CalledProcessError(3, "java"), "over 6 GB"),
    ],
)
def test_limit_of_a_run_is_stored_instead_of_its_figures(monkeypatch, error, limit):
    def run(*_, **__):
        raise error

    monkeypatch.setattr(subprocess, "run", run)
    figures = {}
    stored.measure(figures, "a9a", "moa_sgbt", lambda: moa.run_java([]))
    assert figures == {"a9a": {"moa_sgbt": limit}}


def test_rows_for_moa_end_with_their_class(tmp_path):
    rows = Batch.from_dense(np.array([[0.5, 0.0], [0.0, 2.0]]), np.array([-1.0, 1.0]))
    moa.write_arff(rows, tmp_path / "rows.arff")
    lines = (tmp_path / "rows.arff").read_text().splitlines()
    assert lines[3:] == ["@attribute label {0,1}", "@data", "0.5,0,0", "0,2,1"]
