"""Labels that replace others: statistics as if each row had had its last label from the start."""

import math

import numpy as np
import pytest

from dualstream.solvers import Batch
from dualstream.solvers.history.columns import HistoryColumns
from dualstream.solvers.history.spec import half_life_seconds
from dualstream.solvers.rows.batch import moved_labels
from dualstream.solvers.rows.hashing import hash_names
from tests.solvers.history.reference import Reference, merged
from tests.solvers.history.support import (
    NAN,
    batch_of,
    group,
    inputs_of_width,
    key_number,
    learn_in,
    rows_of,
    same_batches,
)
from tests.solvers.support import as_bytes

CLASSES = ('"a"', '"b"', '"c"')
GROUP = group("shop", ("label_count", "label_mean"), ("1h", "3d"), of=None)
NUMBER = {"binary": lambda label: float(label > 0), "regression": float}


def with_replaced(batch, replaced):
    columns = (batch.indptr, batch.indices, batch.values, batch.labels, batch.weights)
    return Batch(*columns, batch.dim, batch.classes, batch.served, None, np.array(replaced))


def revised_stream(task, seed, n=700, shops=5):
    """A batch of rows, of which some are labelled late and then twice again, and the last label of
    each row: (shop, time, label)."""
    rng = np.random.default_rng(seed)

    def label():
        if task == "regression":
            return float(rng.normal(100, 30))
        return float(rng.integers(0, 3)) if task == "multiclass" else float(rng.choice([-1, 1]))

    at = 1.7e9 + np.cumsum(rng.exponential(300, n)) - np.where(rng.random(n) < 0.1, 4000, 0)
    rows, labels, weights, served, replaced = [], [], [], [], []
    final, waiting = [], []
    for i in range(n):
        row = {"shop": key_number(int(rng.integers(0, shops))), "at": float(at[i])}
        is_waiting = rng.random() < 0.6
        y = NAN if is_waiting else label()
        rows.append(row)
        labels.append(y)
        weights.append(0.0 if is_waiting else 1.0)
        served.append(NAN)
        replaced.append(NAN)
        if is_waiting:
            waiting.append([row, NAN, 0])
        else:
            final.append((row, y))
        for _ in range(2):
            one = waiting[int(rng.integers(0, len(waiting)))] if waiting else None
            if one is None or one[2] == 3:
                continue
            y = label()
            rows.append(one[0])
            labels.append(y)
            weights.append(1.0)
            served.append(0.25)
            replaced.append(one[1])
            one[1], one[2] = y, one[2] + 1
    final += [(row, y) for row, y, _ in waiting if y == y]
    classes = CLASSES if task == "multiclass" else ()
    batch = batch_of([({}, row) for row in rows], labels, weights, served, 10, classes)
    assert np.isfinite(replaced).sum() > 150
    return with_replaced(batch, replaced), rows, final


def expected_columns(task, shop, rows, final):
    """label_count, label_mean of each half-life (and class) of the next row at the newest time."""
    now = max(row["at"] for row in rows if row["shop"] == shop)
    targets = [NUMBER[task]] if task in NUMBER else [lambda y, j=j: float(y == j) for j in range(3)]
    counts, means = [], []
    for one in GROUP["half_life"]:
        h = half_life_seconds(one)
        mine = [(2 ** -((now - row["at"]) / h), y) for row, y in final if row["shop"] == shop]
        weight = math.fsum(w for w, _ in mine)
        counts.append(weight)
        for target in targets:
            overall = math.fsum(target(y) for _, y in final) / len(final)
            mean = math.fsum(w * target(y) for w, y in mine) / weight
            means.append(overall + weight / (weight + 1) * (mean - overall))
    return counts + means, now


@pytest.mark.parametrize("task", ["binary", "regression", "multiclass"])
def test_statistics_equal_sums_over_all_rows_with_their_last_labels(task):
    for seed in range(3):
        batch, rows, final = revised_stream(task, seed)
        stage = HistoryColumns([GROUP], inputs_of_width(10), 10, task)
        stage.learn(batch)
        appeared = [
            name.rpartition("=")[2] for name in stage.names if name.endswith(("a", "b", "c"))
        ]
        order = {name: at for at, name in enumerate(stage.names)}
        features = hash_names(stage.names, 10).tolist()
        for shop in {row["shop"] for row in rows}:
            want, now = expected_columns(task, shop, rows, final)
            row = batch_of([({}, {"shop": shop, "at": now})], [1.0], [0.0], [NAN], 10)
            got = rows_of(stage.peek(row))[0]
            names = [f"shop.label_count.{h}" for h in GROUP["half_life"]]
            for h in GROUP["half_life"]:
                ends = [f"={name}" for name in "abc"] if task == "multiclass" else [""]
                names += [f"shop.label_mean.{h}{end}" for end in ends]
            assert task != "multiclass" or set(appeared) == set("abc")
            numbers = [got.get(features[order[name]], 0.0) for name in names]
            assert numbers == pytest.approx(want, rel=1e-9, abs=1e-12)
        assert stage.counts[0]["lost_labels"] == 0


def test_a_batch_with_replaced_labels_equals_its_rows():
    for task in ("binary", "multiclass"):
        batch, *_ = revised_stream(task, 9)
        groups = [GROUP | {"labels": 3}, group("shop", half_life=(2, 30), of=None, labels=1)]
        whole = HistoryColumns(groups, inputs_of_width(10), 10, task)
        out = whole.learn(batch)
        single = HistoryColumns(groups, inputs_of_width(10), 10, task)
        assert same_batches(learn_in(single, batch, [1, 7]), out)
        assert as_bytes(single.state()) == as_bytes(whole.state())


@pytest.mark.parametrize("task", ["binary", "regression", "multiclass"])
def test_state_equals_that_of_dictionaries_to_the_bit(task):
    batch, rows, _ = revised_stream(task, 5)
    groups = [GROUP | {"labels": 3}, group("shop", half_life=(2, 30), of=None, labels=8)]
    stage = HistoryColumns(groups, inputs_of_width(10), 10, task)
    stage.learn(batch)
    reference = Reference(groups, classes=3 if task == "multiclass" else 1, unit=task == "binary")
    numbers = (batch.labels, batch.replaced)
    if task == "binary":
        numbers = [np.where(np.isnan(one), NAN, one > 0) for one in numbers]
    if task == "multiclass":
        of_class = [stage.names.index(f"shop.labels.1={name}") for name in "abc"]
        order = np.argsort(np.argsort(of_class)).astype(float)
        numbers = [moved_labels(one, order) for one in numbers]
    late = np.isfinite(batch.served)
    for cells, label, before, is_late in zip(rows, *numbers, late, strict=True):
        reference.row(cells, label, False, not is_late, is_late, before)
    features = hash_names(stage.names, 10).tolist()
    for shop in {row["shop"] for row in rows}:
        cells = {"shop": shop, "at": 1.7e9 + 1e7}
        got = rows_of(stage.peek(batch_of([({}, cells)], [1.0], [0.0], [NAN], 10)))[0]
        columns = reference.row(cells, NAN, True, False, False)
        assert got == merged({}, features, columns)


def stepper(stage, shop=7.0):
    names = dict(zip(hash_names(stage.names, 10).tolist(), stage.names, strict=True))

    def step(at, label, weight, served=NAN, replaced=NAN):
        row = [({}, {"shop": shop, "at": 1e9 + at})]
        batch = batch_of(row, [label], [weight], [served], 10)
        out = rows_of(stage.learn(with_replaced(batch, [replaced])))[0]
        return {names[j]: x for j, x in out.items()}

    return step


def test_the_newest_equal_label_is_replaced_where_it_is():
    stage = HistoryColumns([group("shop", (), (), of=None, labels=3)], inputs_of_width(10), 10,
                           "regression")  # fmt: skip
    step = stepper(stage)
    for label in (1.0, 2.0, 3.0, 2.0):
        step(0, NAN, 0.0)
        step(0, label, 1.0, served=0.5)
    step(0, 9.0, 1.0, served=0.5, replaced=2.0)
    labels = {"shop.labels.1": 9.0, "shop.labels.2": 3.0, "shop.labels.3": 2.0}
    assert step(0, 1.0, 0.0) == labels
    step(0, 8.0, 1.0, served=0.5, replaced=1.0)  # older than the last three
    assert step(0, 1.0, 0.0) == labels


def test_with_half_lives_of_rows_the_new_label_is_one_more():
    stage = HistoryColumns([group("shop", ("label_count",), (1,), of=None)], inputs_of_width(10),
                           10, "binary")  # fmt: skip
    step = stepper(stage)
    step(0, NAN, 0.0)
    step(0, 1.0, 1.0, served=0.5)
    step(0, -1.0, 1.0, served=0.5, replaced=1.0)
    assert step(0, 1.0, 0.0) == {"shop.label_count.1": 1.5}


def test_a_label_that_was_evicted_is_not_taken_out():
    stage = HistoryColumns([group("shop", ("label_count", "label_mean"), ("1h",), of=None, keys=1)],
                           inputs_of_width(10), 10, "binary")  # fmt: skip
    step = stepper(stage)
    step(0, NAN, 0.0)
    step(0, 1.0, 1.0, served=0.5)
    for shop in range(40):
        stepper(stage, key_number(shop))(0, NAN, 0.0)
    assert stage.counts[0]["evicted"] > 0
    step(0, NAN, 0.0)
    assert "shop.label_count.1h" not in step(0, 1.0, 0.0)
    step(0, -1.0, 1.0, served=0.5, replaced=1.0)
    assert step(0, 1.0, 0.0)["shop.label_count.1h"] == 1.0
    assert stage.state()["totals"].tolist() == [1.0, 0.0]


def test_replaced_extremes_leave_a_finite_state():
    rng, n = np.random.default_rng(7), 3000
    groups = [group("card", half_life=("1s", "1h"), labels=2), group("card", half_life=(0.1, 1e9))]
    rows = [
        ({}, {"card": 5.0, "at": t, "x": 1.0}) for t in rng.choice([-1e100, 0, 1.7e9, 1e100], n)
    ]
    extremes = [-1e100, 0.0, 1.0, 1e-300, 1e100]
    served = rng.choice([NAN, 0.5], n)
    batch = batch_of(rows, rng.choice(extremes, n), np.ones(n), served, 3)
    replaced = np.where(served == served, rng.choice([*extremes, NAN], n), NAN)
    stage = HistoryColumns(groups, inputs_of_width(3), 3, "regression")
    stage.learn(with_replaced(batch, replaced))
    state = stage.state()
    assert all(np.isfinite(array).all() for array in state.values())
    stage.restore(state)


def test_replaced_labels_follow_their_rows_and_the_classes():
    empty, ones = [({}, {})] * 2, [1.0, 1.0]
    first = batch_of(empty, [0.0, 1.0], ones, [NAN, 0.5], 4, ("a", "b"))
    second = batch_of(empty, [0.0, 1.0], ones, [0.5, 0.5], 4, ("b", "a"))
    first, second = with_replaced(first, [NAN, 0.0]), with_replaced(second, [1.0, NAN])
    plain = batch_of([({}, {})], [0.0], [1.0], [NAN], 4, ("c",))
    joined = Batch.concat([first, second, plain])
    names = [None if y != y else joined.classes[int(y)] for y in joined.replaced]
    assert names == [None, "a", "a", None, None]
    assert joined[1:3].replaced.tolist() == [0.0, 0.0]
    assert joined.take([2]).replaced.tolist() == [0.0]
    assert plain.replaced is None
