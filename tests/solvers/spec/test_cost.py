"""Estimated time of a row: orders of magnitude, growth, and the limit for new specifications."""

import time

import numpy as np
import pytest

from dualstream.solvers import Batch, InvalidSpec, make_learner, resolve_spec
from dualstream.solvers.nonlinear import boosted_ring
from dualstream.solvers.protocols.learner import has_long_row
from dualstream.solvers.spec.cost import check_cost, learning_cost, making_seconds, predicting_cost

TOO_LONG = {
    "a pass over many weights": (
        {"regularizer": "entropy", "features": {"kind": "hashed", "bits": 26}},
        "features",
    ),
    "replay over many weights": (
        {"regularizer": "entropy", "replay": {"steps": 100}, "features": "hashed-20"},
        "replay",
    ),
    "replay until a gap over many weights": (
        {
            "replay": {"until_gap": 0.01, "max_steps": 1000, "every": 1},
            "features": {"kind": "hashed", "bits": 24},
        },
        "replay",
    ),
}


def spec_of(given: dict) -> dict:
    fields = {"algorithm": "dual_ascent", **given}
    if fields["features"] == "hashed-20":
        fields["features"] = {"kind": "hashed", "bits": 20}
    return fields


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_row_of_more_than_a_second_is_refused_with_field_estimate_and_limit(name):
    inputs, field = TOO_LONG[name]
    spec = spec_of(inputs)
    with pytest.raises(InvalidSpec, match=r"estimated to take .* s, and the limit is 1 s") as wrong:
        check_cost(resolve_spec(spec))
    assert wrong.value.field == f"/{field}"
    fields = {name: value for name, value in spec.items() if name != "features"}
    whole = resolve_spec(
        {"features": spec["features"], "algorithm": "portfolio", "members": [fields]}
    )
    with pytest.raises(InvalidSpec) as wrong:
        check_cost(whole)
    assert wrong.value.field == f"/members/0/{field}"


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"task": "multiclass"},
        {"task": "regression"},
        {"algorithm": "dual_ascent", "regularizer": "entropy", "features": "hashed"},
        {"algorithm": "dual_ascent", "replay": {"until_gap": 0.05}, "features": "hashed"},
        {
            "algorithm": "dual_ascent",
            "map": {"kind": "nystroem", "components": 2048},
            "features": {"kind": "indexed", "dim": 10},
        },
    ],
)
def test_what_the_documents_recommend_is_accepted(spec):
    check_cost(resolve_spec(spec))


def batch_of(spec: dict, rows: int, classes: int) -> Batch:
    names = tuple(f'"c{k}"' for k in range(classes))
    labels = np.arange(rows) % classes if classes else np.arange(rows) % 2 * 2.0 - 1.0
    features = spec["features"]
    dim = features.get("dim") or 1 << features["bits"]
    indices = (np.arange(4 * rows) * 7 % 4 + np.arange(4 * rows) // 4 * 0).reshape(rows, 4)
    indices = np.sort(indices, axis=1).ravel().astype(np.int32)
    values = np.random.default_rng(0).normal(size=4 * rows)
    indptr = np.arange(0, 4 * rows + 1, 4)
    return Batch(indptr, indices, values, labels.astype(float), np.ones(rows), dim, names)


MEASURED = {
    "portfolio": ({"members": "eight"}, 0),
    "full": ({}, 0),
    "dual ascent": ({"algorithm": "dual_ascent", "features": "hashed"}, 0),
    "entropy": ({"algorithm": "dual_ascent", "regularizer": "entropy", "features": "hashed"}, 0),
    "replay": ({"algorithm": "dual_ascent", "replay": {"steps": 10_000}, "features": "hashed"}, 0),
    "sgd_l1": ({"algorithm": "sgd_l1", "features": "hashed"}, 0),
    "fourier": (
        {
            "algorithm": "dual_ascent",
            "map": {"kind": "fourier", "components": 4096},
            "features": {"kind": "indexed", "dim": 4},
        },
        0,
    ),
    "perceptron of 40 classes": (
        {"algorithm": "perceptron", "task": "multiclass", "features": "hashed"},
        40,
    ),
    "portfolio of 20 classes": ({"members": "eight", "task": "multiclass"}, 20),
    "net of 100 classes": ({"algorithm": "net", "task": "multiclass"}, 100),
    "neighbours of 100 classes": ({"algorithm": "neighbours", "task": "multiclass"}, 100),
    "boosted of 100 classes": ({"algorithm": "boosted", "task": "multiclass"}, 100),
    "full of 20 classes": ({"members": "full", "task": "multiclass"}, 20),
}


@pytest.mark.parametrize("name", MEASURED)
def test_the_estimate_has_the_order_of_magnitude_of_what_is_measured(name):
    """In CPU time. The server corrects a factor of ten after the first slice."""
    inputs, classes = MEASURED[name]
    spec = resolve_spec(inputs)
    learner = make_learner(spec)
    learner.learn(batch_of(spec, max(classes, 8), classes))
    for rows in (1, 40):
        batch = batch_of(spec, rows, classes)
        spent = []
        for _ in range(7):
            began = time.thread_time()
            learner.learn(batch)
            spent.append(time.thread_time() - began)
        estimated = learning_cost(learner).seconds(rows, batch.nnz)
        assert estimated / 20 < min(spent) and np.median(spent) < 20 * estimated, (spent, estimated)
        spent = []
        for _ in range(3):  # the first ones may have to wait for memory
            began = time.thread_time()
            learner.predict(batch)
            spent.append(time.thread_time() - began)
        assert min(spent) < 20 * predicting_cost(learner).seconds(rows, batch.nnz), spent


def test_a_pass_of_an_average_over_all_weights_is_a_peak():
    spec = {"algorithm": "rda", "features": {"kind": "hashed", "bits": 20}}
    plain, averaged = (
        learning_cost(make_learner(resolve_spec(spec | more)))
        for more in ({}, {"average": {"kappa": 1.0}})
    )
    assert plain.peak == 0.0 and averaged.peak > 1e-3
    assert averaged.row - plain.row == pytest.approx(averaged.peak / 4096)


def test_the_estimate_grows_with_classes_and_members():
    spec = resolve_spec({"task": "multiclass", "members": "eight"})
    learner = make_learner(spec)
    before = learning_cost(learner)
    learner.learn(batch_of(spec, 8, 4))
    after = learning_cost(learner)
    assert after.call == pytest.approx(5 * before.call) and not after.is_plain
    portfolio = make_learner(resolve_spec({"members": "eight"}))
    few = learning_cost(portfolio)
    portfolio.add_member({"algorithm": "dual_ascent", "replay": {"steps": 1000}})
    assert learning_cost(portfolio).row > few.row + 1e-4 and few.is_plain


def test_a_learner_says_when_a_row_may_start_long_work(monkeypatch):
    spec = resolve_spec(
        {
            "algorithm": "dual_ascent",
            "scaling": "balanced",
            "map": {"kind": "nystroem", "components": 16},
            "features": {"kind": "indexed", "dim": 10},
        }
    )
    learner = make_learner(spec)
    assert not learning_cost(learner).is_even
    learner.learn(batch_of(spec, 10, 0))
    assert not has_long_row(learner, 5) and has_long_row(learner, 6)
    learner.learn(batch_of(spec, 10, 0))
    assert not has_long_row(learner, 1000)
    rda = make_learner(
        resolve_spec({"algorithm": "rda_plus", "retain": 20, "stable": 20, "features": "hashed"})
    )
    assert not has_long_row(rda, 19) and has_long_row(rda, 20)
    eight = resolve_spec({"members": "eight"})
    learner = make_learner(eight)
    assert not has_long_row(learner, 31) and has_long_row(learner, 32)
    learner.learn(batch_of(eight, 32, 0))
    assert not has_long_row(learner, 1000)
    boosted = resolve_spec({"algorithm": "boosted", "features": {"kind": "indexed", "dim": 10}})
    trees = make_learner(boosted)
    trees.learn(batch_of(boosted, 64, 0))
    assert not has_long_row(trees, 1000)
    monkeypatch.setattr(boosted_ring, "QUICK_ROWS", 64)
    assert not has_long_row(trees, 0) and has_long_row(trees, 1000)


@pytest.mark.parametrize("is_member", [False, True])
def test_making_a_map_is_estimated_and_other_learners_take_no_time(is_member):
    features = {"kind": "indexed", "dim": 2048}
    fields = {"algorithm": "dual_ascent", "map": {"kind": "fourier", "components": 2048}}
    whole = (
        {"members": [fields], "features": features}
        if is_member
        else {**fields, "features": features}
    )
    spec = resolve_spec(whole)
    times = []
    for _ in range(3):
        began = time.thread_time()
        make_learner(spec)
        times.append(time.thread_time() - began)
    assert 0.2 < making_seconds(spec) / min(times) < 20
    plain = {"algorithm": "dual_ascent"} if not is_member else {"members": "eight"}
    wide = resolve_spec({**plain, "features": {"kind": "hashed", "bits": 24}})
    assert making_seconds(wide) == 0.0


@pytest.mark.parametrize("task", ["binary", "multiclass"])
def test_a_history_costs_its_groups_and_an_entry_for_each_column(task):
    columns = {"types": {"card": "category", "shop": "category", "at": "time"}}
    history = [
        {"by": "card", "time": "at", "stats": ["since", "count"], "half_life": ["1h", "1d"]},
        {"by": "shop", "labels": 1},
    ]
    plain, computed = (
        learning_cost(make_learner(resolve_spec({"columns": columns, "task": task, **more})))
        for more in ({}, {"history": history})
    )
    entries = 3 + (10 if task == "multiclass" else 1)
    assert computed.row - plain.row == pytest.approx(2 * 1.5e-7 + entries * plain.entry)
    assert (computed.entry, computed.peak) == (plain.entry, plain.peak)
