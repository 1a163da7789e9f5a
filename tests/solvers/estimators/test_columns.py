"""Estimators with `columns`: a table gives the weights that the server has after the same rows."""

import json
import pickle
import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from dualstream.service.codecs import as_batch, parse_body
from dualstream.service.codecs.row_schema import RowSchema
from dualstream.solvers import make_learner, resolve_spec
from dualstream.solvers.estimators import river, sklearn
from tests.service.codecs.flat_tables import generated

ROWS = [
    {name: value for name, value in row.items() if name not in ("event", "cost")}
    for row in generated(3, 60)
]
LABELS = [row.pop("clicked") for row in ROWS]
COLUMNS = {
    "ignore": ["ip"],
    "types": {
        "price": "number",
        "zip": "category",
        "member": "boolean",
        "subject": {"kind": "text", "ngrams": 2},
        "at": {"kind": "time", "parts": ["hour", "weekday", "age"]},
    },
    "missing": ["NA", "NaN", None],
    "missing_indicator": True,
}
CROSSES = [["site", "at.hour"], ["zip", "member"]]
COLUMN_SPEC = {"columns": COLUMNS, "crosses": CROSSES}


def frame(rows=ROWS):
    """The rows with the types of pandas: NaN, NaT and NA for what is missing."""
    result = pd.DataFrame(rows)
    result["at"] = pd.to_datetime(result["at"], utc=True, format="ISO8601")
    result["member"] = result["member"].astype("boolean")
    result["site"] = result["site"].astype("category")
    return result


def tables():
    arrow = pa.Table.from_pandas(frame(), preserve_index=False)
    assert arrow.schema.field("at").type == pa.timestamp("ns", "UTC")
    return {"frame": frame(), "dicts": ROWS, "arrow": arrow, "numpy": numpy_rows()}


def numpy_rows():
    """Dicts of scalars of NumPy and of decimals."""
    rows = []
    for row in ROWS:
        price = None if row["price"] is None else Decimal(str(row["price"]))
        at = np.datetime64(pd.Timestamp(row["at"]).tz_convert(None))
        score = np.float64(np.nan if row["score"] is None else row["score"])
        rows.append(row | {"price": price, "at": at, "score": score, "zip": np.str_(row["zip"])})
    return rows


def served(fields, rows=ROWS, labels=LABELS):
    """A learner after the same rows, parsed by the server as JSON."""
    spec = resolve_spec(fields | {"columns": fields["columns"] | {"label": "clicked"}})
    learner = make_learner(spec)
    learner.learn(parsed(spec, rows, labels))
    return learner


def parsed(spec, rows, labels):
    body = json.dumps([row | {"clicked": y} for row, y in zip(rows, labels, strict=True)])
    result = parse_body(RowSchema(spec), None, body.encode(), labelled=True)
    assert not result.errors, result.errors[:2]
    return as_batch([result.rows])


def same_state(one, other):
    one, other = one.state(), other.state()
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("kind", tables())
def test_a_table_gives_the_weights_of_the_server(kind):
    table = tables()[kind]
    expected = served({"algorithm": "dual_ascent"} | COLUMN_SPEC)
    model = sklearn.DualstreamClassifier(**COLUMN_SPEC).partial_fit(table, LABELS, classes=[0, 1])
    same_state(model.model_.learner, expected)
    assert np.count_nonzero(expected.weights) > 100
    ordered = sklearn.DualstreamClassifier(**COLUMN_SPEC, passes=1, shuffle=False).fit(
        table, LABELS
    )
    same_state(ordered.model_.learner, expected)
    many = river.DualstreamClassifier(**COLUMN_SPEC)
    if kind == "frame":
        many.learn_many(table, pd.Series(LABELS))
        assert many.predict_many(table).tolist() == (model.predict(table) == 1).tolist()
    elif kind != "arrow":
        for row, y in zip(table, LABELS, strict=True):
            many.learn_one(row, y)
    if kind != "arrow":
        same_state(many.learner, expected)


def test_a_portfolio_and_a_regression_are_those_of_the_server():
    table = frame()
    fitted = sklearn.PortfolioClassifier("twelve", **COLUMN_SPEC, shuffle=False).fit(table, LABELS)
    same_state(fitted.model_.learner, served({"members": "twelve"} | COLUMN_SPEC))
    fitted = sklearn.PortfolioRegressor("ten", **COLUMN_SPEC, shuffle=False).fit(table, LABELS)
    spec = {"members": "ten", "task": "regression"} | COLUMN_SPEC
    same_state(fitted.model_.learner, served(spec))
    online = river.PortfolioRegressor("ten", **COLUMN_SPEC)
    online.learn_many(table, pd.Series(LABELS))
    same_state(online.learner, served(spec))


def test_names_of_columns_are_kept_as_scikit_learn_demands():
    table = frame()
    model = sklearn.DualstreamClassifier(**COLUMN_SPEC).fit(table, LABELS)
    assert model.feature_names_in_.tolist() == list(table.columns)
    assert model.n_features_in_ == len(table.columns)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(table.drop(columns="site"))
    scores = model.decision_function(table)
    copied = pickle.loads(pickle.dumps(model))
    assert np.array_equal(copied.decision_function(table), scores)
    # Rows of a list are read by their names.
    assert np.array_equal(model.decision_function(ROWS), scores)
    model.fit(ROWS, LABELS)
    assert not hasattr(model, "feature_names_in_") and not hasattr(model, "n_features_in_")
    assert model.predict(table[["site", "zip"]]).shape == (60,)


def test_columns_are_those_of_the_last_fit():
    model, table = sklearn.DualstreamClassifier(**COLUMN_SPEC).fit(frame(), LABELS), frame()
    scores = model.decision_function(table)
    model.set_params(columns=None, crosses=None)
    assert np.array_equal(model.decision_function(table), scores)
    model.partial_fit(table, LABELS)
    x = np.arange(120.0).reshape(60, 2)
    assert model.fit(x, LABELS).predict(x).shape == (60,) and model.n_features_in_ == 2
    model.set_params(columns=COLUMNS)
    assert model.predict(x).shape == (60,)


def test_a_grid_search_sets_fields_of_the_specification():
    grid = {"loss": ["logistic", "hinge"], "rho": [0.01, 1.0], "norm": ["none", "row"]}
    search = GridSearchCV(sklearn.DualstreamClassifier(**COLUMN_SPEC, passes=1), grid, cv=2)
    search.fit(frame(), LABELS)
    assert len(search.cv_results_["params"]) == 8
    spec = search.best_estimator_.model_.learner.spec
    assert {name: spec[name] for name in grid} == search.best_params_


FIELDS = {
    "loss": "huber",
    "rho": 0.5,
    "window": {"kind": "exponential", "beta": 0.9},
    "scaling": "balanced",
    "norm": "row",
    "average": {"kappa": 0.5},
    "regularizer": {"kind": "elastic_net", "delta": 0.5},
}


@pytest.mark.parametrize("name", [*FIELDS, "strength"])
def test_a_parameter_is_the_field_of_the_specification(name):
    value = FIELDS.get(name, 3.0)
    x, y = np.eye(3), np.arange(3.0)
    by_parameter = clone(sklearn.DualstreamRegressor(**{name: value})).fit(x, y)
    by_spec = sklearn.DualstreamRegressor(spec={name: value}).fit(x, y)
    assert by_parameter.model_.learner.spec == by_spec.model_.learner.spec
    assert (
        by_parameter.model_.learner.spec
        != sklearn.DualstreamRegressor().fit(x, y).model_.learner.spec
    )
    with pytest.raises(ValueError, match=f"{name} is given as a parameter and in spec"):
        sklearn.DualstreamRegressor(**{name: value}, spec={name: value}).fit(x, y)


BAD = [
    ({"columns": {"label": "clicked"}}, "columns must not hold 'label'"),
    ({"columns": {"types": {"a": "colour"}}}, "a must be one of number"),
    ({"crosses": ["*"]}, "given with `columns`"),
]


@pytest.mark.parametrize(("fields", "reason"), BAD)
def test_bad_fields_are_refused(fields, reason):
    with pytest.raises(ValueError, match=reason):
        sklearn.DualstreamClassifier(**fields).fit(np.eye(2), [0, 1])
    with pytest.raises(ValueError, match=reason):
        river.DualstreamClassifier(**fields)
    with pytest.raises(ValueError, match="spec must not hold 'columns'"):
        river.DualstreamClassifier(spec={"columns": {}})


BAD_ROWS = [
    ([{"price": "cheap"}], "row 0: column 'price' must be a number, got 'cheap'"),
    ([{"price": 1}, {"at": "soon"}], "row 1: column 'at' must be a time"),
    ([{"y": 1}], "takes column 'y' for the label of a row; drop it or rename it"),
    ([{"weight": 70.5}], "takes column 'weight' for the weight of a row; give it a type"),
    ([{"other": 2**53 + 1}], "beyond 2.53"),
    ([{"other": float("inf")}], "must be in ..1e100, 1e100., got inf"),
    ([{"zip": "1" * 1100}], "at most 1024 characters"),
    ([{"other": b"bytes"}], "column 'other' must be"),
    ([{"other": np.timedelta64(1, "s")}], "column 'other' must be"),
    (np.eye(2), "rows must be a DataFrame, an Arrow table or a list of dicts; got a row that"),
    ([[1.0, 2.0]], "got a row that is a list"),
    ({"price": [1.0]}, "got a dict"),
    (pd.DataFrame([[1, 2]], columns=["a", "a"]), "Expected unique column names"),
    ([{1: 2.0, "1": 3.0}], "two columns have the name '1'"),
]


@pytest.mark.parametrize(("rows", "reason"), BAD_ROWS)
def test_bad_rows_are_refused(rows, reason):
    y = [0, 1][: len(rows)]
    model = sklearn.DualstreamClassifier(**COLUMN_SPEC)
    with pytest.raises(ValueError, match=reason):
        model.partial_fit(rows, y, classes=[0, 1])
    assert not hasattr(model, "model_")


def test_labels_are_checked():
    model = sklearn.DualstreamClassifier(**COLUMN_SPEC)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(ROWS, LABELS[1:])
    with pytest.raises(ValueError, match="y is needed"):
        model.fit(ROWS, None)
    with pytest.raises(ValueError, match="a finite number, got nan"):
        sklearn.DualstreamRegressor(**COLUMN_SPEC).fit(ROWS, [np.nan] * 60)


def test_what_is_missing_is_declared():
    """A NaN counts only if `missing` has it; None, NaT and NA are null."""
    rows = pd.DataFrame({"a": [1.0, np.nan], "b": ["x", pd.NA], "c": [pd.NaT, pd.NaT]})
    columns = {"types": {"a": "number", "b": "category", "c": "time"}}
    for missing, reason in (
        ([None], "row 1: column 'a': the number must be .* got nan"),
        (["NaN"], "column '[bc]' must be"),
    ):
        with pytest.raises(ValueError, match=reason):
            sklearn.DualstreamClassifier(columns=columns | {"missing": missing}).fit(rows, [0, 1])
    model = sklearn.DualstreamClassifier(columns=columns, bits=8).fit(rows, [0, 1])
    assert len(model.model_.learner.weights) == 256
    assert np.count_nonzero(model.model_.learner.weights) == 2


@pytest.mark.parametrize("guide", ["columns", "history"])
def test_the_example_of_the_guide_prints_what_it_says(guide, capsys):
    text = (Path(__file__).parents[3] / f"docs/guides/{guide}.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)
    exec(code, {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"  # (.*)$", code, re.MULTILINE)


HISTORY = [
    {"by": "zip", "time": "at", "of": "price", "stats": ["count", "mean", "difference", "since"],
     "half_life": ["1d", "30d"], "labels": 2},
    {"by": ["site", "ip"], "stats": "label_mean", "half_life": 10},
    {"of": "score", "stats": ["last", "change"]},
]  # fmt: skip
HISTORY_SPEC = {
    "columns": {key: value for key, value in COLUMNS.items() if key != "ignore"}
    | {"types": COLUMNS["types"] | {"ip": "ignore", "site": "category", "score": "number"}},
    "crosses": CROSSES,
    "history": HISTORY,
}


def test_a_history_is_that_of_the_server_for_the_same_rows(subtests):
    rows = range(len(ROWS))
    labels = {
        "binary": LABELS,
        "multiclass": [at * at % 7 % 3 for at in rows],
        "regression": [at * 0.5 for at in rows],
    }
    for task, y in labels.items():
        with subtests.test(task):
            spec = {"algorithm": "dual_ascent", "task": task} | HISTORY_SPEC
            expected = served(spec, labels=y)
            kind = "Regressor" if task == "regression" else "Classifier"
            fitted = getattr(sklearn, f"Dualstream{kind}")(**HISTORY_SPEC).fit(frame(), y)
            same_state(fitted.model_.learner, expected)
            more = {"task": task} if kind == "Classifier" else {}
            online = getattr(river, f"Dualstream{kind}")(**HISTORY_SPEC, **more)
            for row, label in zip(ROWS, y, strict=True):
                online.predict_one(row)
                online.learn_one(row, label)
            same_state(online.learner, expected)
            history = {name for name in expected.state() if name.startswith("history.")}
            assert any(expected.state()[name].any() for name in history)
            batch = parsed(expected.spec, ROWS, y)
            if task == "multiclass":
                scores = expected.predict_classes(batch).scores
                order = [int(text) for text in expected.predict_classes(batch).classes]
                assert np.array_equal(fitted.decision_function(frame())[:, order], scores)
            else:
                scores = expected.predict(batch)
                assert np.array_equal(fitted.model_.scores(fitted._rows(frame())), scores)
            same_state(fitted.model_.learner, expected)


def test_fit_forgets_the_history_and_partial_fit_continues_it():
    first, second = frame(ROWS[:30]), frame(ROWS[30:])
    model = sklearn.DualstreamClassifier(**HISTORY_SPEC)
    model.fit(second, LABELS[30:]).fit(first, LABELS[:30]).partial_fit(second, LABELS[30:])
    expected = served({"algorithm": "dual_ascent"} | HISTORY_SPEC)
    same_state(model.model_.learner, expected)
    copied = pickle.loads(pickle.dumps(model))
    same_state(copied.model_.learner, expected)
    assert clone(model).history == HISTORY
    portfolio = sklearn.PortfolioClassifier("twelve", **HISTORY_SPEC).fit(frame(), LABELS)
    same_state(portfolio.model_.learner, served({"members": "twelve"} | HISTORY_SPEC))
    assert portfolio.members_[0].name == "prior"
    online = pickle.loads(pickle.dumps(river.PortfolioClassifier("twelve", **HISTORY_SPEC)))
    online.learn_many(frame(), pd.Series(LABELS))
    same_state(online.learner, portfolio.model_.learner)


def test_a_history_that_means_nothing_is_refused():
    with pytest.raises(ValueError, match="given with `columns`"):
        sklearn.DualstreamClassifier(history=HISTORY).fit(np.eye(4), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="given with `columns`"):
        river.DualstreamClassifier(history=HISTORY)
    with pytest.raises(ValueError, match="history.0.by must be"):
        wrong = HISTORY_SPEC | {"history": [HISTORY[0] | {"by": "color"}]}
        sklearn.DualstreamClassifier(**wrong).fit(frame(), LABELS)
    with pytest.raises(ValueError, match="the estimator sets it"):
        river.DualstreamClassifier(columns=COLUMNS, spec={"history": HISTORY})
    with pytest.raises(ValueError, match="is computed from the history"):
        river.DualstreamClassifier(**HISTORY_SPEC).predict_one({"zip.since": 1.0})
