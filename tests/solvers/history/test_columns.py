"""History columns: against plain Python and direct sums, in any batches, and their state."""

import math

import numpy as np
import pytest

from dualstream.solvers import Batch, CorruptState
from dualstream.solvers.errors import ShapeMismatch
from dualstream.solvers.history.columns import HistoryColumns
from dualstream.solvers.history.kernels import AHEAD
from dualstream.solvers.history.spec import half_life_seconds, table_bytes
from dualstream.solvers.rows.hashing import hash_names
from tests.solvers.history.reference import Reference, merged
from tests.solvers.history.support import (
    ALL,
    NAMES,
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

ROWS = 6000
GROUPS = [
    group("card", ("since", "count", "mean", "difference"), ("1h", "1d", "30d")),
    group("shop", half_life=("1d", "1w"), labels=3),
    group("card shop", ("since", "count", "label_count", "label_mean"), ("7d",), of=None, labels=1),
    group("shop", half_life=(10, 100, 0.5), of="z", time="sent", labels=2),
    group("city", ("last", "change", "sum"), (3,), time=None),
    group(stats=("change", "since", "label_mean"), half_life=("2d",), keys=1),
    group("city", (), (), of=None, time=None, labels=8),
]


def stream(seed, n=ROWS, bits=10, task="binary", cards=700):
    """Rows as (own entries, cells), labels, weights and served scores."""
    rng = np.random.default_rng(seed)
    at = 1.7e9 + np.cumsum(rng.exponential(300, n))
    at -= np.where(rng.random(n) < 0.05, rng.exponential(1e5, n), 0)
    at += np.where(np.arange(n) > n // 2, 3e9, 0)
    at = np.where(rng.random(n) < 0.2, np.round(at, -3), at)
    cells = {
        "card": [key_number(key) for key in np.minimum(rng.pareto(1, n) * 20, cards).astype(int)],
        "shop": [key_number(key) for key in rng.integers(0, 40, n)],
        "city": [key_number(key) for key in rng.integers(0, 9, n)],
        "at": at,
        "sent": at - rng.integers(0, 2, n) * 5000.0,
        "x": np.where(rng.random(n) < 0.1, 0.0, rng.lognormal(3, 1, n)),
        "z": np.round(rng.normal(0, 3, n)),
    }
    if task == "regression":
        labels = rng.normal(0, 5, n)
    elif task == "multiclass":
        labels = np.minimum(rng.pareto(0.7, n) * 3, 13).astype(int).astype(float)
    else:
        labels = rng.choice([-1.0, 0.0, 1.0], n)
    weights, served = rng.choice([0.0, 1.0, 2.0], n, p=[0.1, 0.6, 0.3]), np.full(n, NAN)
    missing = {name: rng.random(n) < 0.03 for name in NAMES}
    observed, late = rng.random(n) < 0.1, rng.random(n) < 0.1
    rows = []
    for i in range(n):
        row = {name: float(cells[name][i]) for name in NAMES if not missing[name][i]}
        entries = {int(j): float(rng.normal()) for j in rng.integers(0, 1 << bits, 3)}
        if observed[i]:
            labels[i], weights[i] = NAN, 0.0
        elif late[i] and i > 50:
            row = rows[i - int(rng.integers(1, 50))][1]
            served[i] = rng.normal()
        rows.append((entries, row))
    return rows, labels, weights, served


def expected(reference, features, stream):
    """Rows {index: number} of the reference."""
    out = []
    for (entries, cells), label, weight, served in zip(*stream, strict=True):
        is_late, is_labelled = served == served, label == label
        enters = not is_late and (not is_labelled or weight > 0)
        reads = not is_late and is_labelled
        label = label if weight > 0 else NAN
        columns = reference.row(cells, label, reads, enters, is_late)
        out.append(merged(entries, features, columns) if reads else entries)
    return out


def as_binary(labels):
    return np.where(np.isnan(labels), NAN, np.where(labels > 0, 1.0, 0.0))


@pytest.mark.parametrize("bits", [10, 4])
@pytest.mark.parametrize("task", ["binary", "regression"])
def test_columns_equal_those_of_dictionaries_to_the_bit(task, bits):
    # With 4 bits, columns share indices with each other and with the row's own entries.
    rows, labels, weights, served = stream(1, n=2000, bits=bits, task=task)
    stage = HistoryColumns(GROUPS, inputs_of_width(bits), bits, task)
    out = stage.learn(batch_of(rows, labels, weights, served, bits))
    targets = as_binary(labels) if task == "binary" else labels
    reference = Reference(GROUPS)
    features = hash_names(stage.names, bits).tolist()
    assert rows_of(out) == expected(reference, features, (rows, targets, weights, served))
    assert out.dim == 1 << bits
    counts = stage.counts
    assert [one["late"] for one in counts] == reference.late
    assert [one["lost_labels"] for one in counts] == reference.lost
    assert [one["keys"] for one in counts] == [len(table) for table in reference.tables]
    assert [one["evicted"] for one in counts] == [0] * len(GROUPS)
    assert min(reference.late[:4]) > 0 and max(reference.lost) > 0


def test_numbers_are_near_those_of_the_c_library():
    rows, labels, weights, served = stream(2, n=2000)
    exact = Reference(GROUPS, decay=lambda x: math.exp2(-x) if x < 256 else 0.0, log=math.log1p)
    ours = Reference(GROUPS)
    worst = 0.0
    for (_, cells), label, weight in zip(rows, as_binary(labels), weights, strict=True):
        pair = [one.row(cells, label, True, weight > 0, False) for one in (ours, exact)]
        for a, b in zip(*pair, strict=True):
            if a is not None and a == a:
                worst = max(worst, abs(a - b) / max(1.0, abs(b)))
    assert worst < 1e-11


@pytest.mark.parametrize("ahead", [0, AHEAD])
@pytest.mark.parametrize("keys", [4000, 6])
def test_a_batch_equals_its_rows_with_and_without_evictions(keys, ahead):
    groups = [one | {"keys": min(keys, one["keys"])} for one in GROUPS]
    batch = batch_of(*stream(3, n=3000), 10)
    whole = HistoryColumns(groups, inputs_of_width(10), 10, "binary")
    whole._ahead = ahead  # as with large tables: keys are searched before rows in between enter
    out = whole.learn(batch)
    assert (whole.counts[0]["evicted"] > 0) == (keys == 6)
    for sizes in ([1], [7, 100, 1, 33]):
        stage = HistoryColumns(groups, inputs_of_width(10), 10, "binary")
        assert same_batches(learn_in(stage, batch, sizes), out)
        assert as_bytes(stage.state()) == as_bytes(whole.state())


def test_a_prediction_reads_what_a_learned_row_reads_and_changes_nothing():
    rows, labels, weights, served = stream(4, n=400)
    batch = batch_of(rows, labels, weights, np.full(400, NAN), 10)
    stage = HistoryColumns(GROUPS, inputs_of_width(10), 10, "binary")
    for i in range(400):
        row = batch[i : i + 1]
        before = as_bytes(stage.state())
        peeked = stage.peek(row)
        assert as_bytes(stage.state()) == before
        learned = stage.learn(row)
        if labels[i] == labels[i]:
            assert same_batches(peeked, learned)
        assert (as_bytes(stage.state()) == before) == (weights[i] == 0 and labels[i] == labels[i])


def test_means_and_counts_equal_sums_over_all_earlier_rows():
    rows, labels, weights, _ = stream(5, n=1200)
    groups = [group("shop", ("count", "sum", "mean", "deviation"), ("1d", "1w"))]
    stage = HistoryColumns(groups, inputs_of_width(10), 10, "binary")
    out = rows_of(stage.learn(batch_of([({}, row) for _, row in rows], labels, weights,
                                       np.full(1200, NAN), 10)))  # fmt: skip
    features = hash_names(stage.names, 10).tolist()
    past, compared = {}, 0
    for i, (_, cells) in enumerate(rows):
        if not {"shop", "at", "x"} <= set(cells):
            continue
        mine = past.setdefault(cells["shop"], [])
        if labels[i] == labels[i] and mine:
            now = max(cells["at"], max(time for time, _ in mine))
            for h, half_life in enumerate(groups[0]["half_life"]):
                each = [2 ** -((now - time) / half_life_seconds(half_life)) for time, _ in mine]
                count, xs = math.fsum(each), [x for _, x in mine]
                if count < 1e-30:
                    continue
                total = math.fsum(w * x for w, x in zip(each, xs, strict=True))
                mean = total / count
                square = math.fsum(w * (x - mean) ** 2 for w, x in zip(each, xs, strict=True))
                got = [out[i].get(features[2 * stat + h], 0.0) for stat in range(4)]
                want = [math.log1p(count), total, mean, math.sqrt(square / count)]
                assert got == pytest.approx(want, rel=1e-9, abs=1e-9)
                compared += 1
        if labels[i] != labels[i] or weights[i] > 0:
            mine.append((cells["at"], cells["x"]))
    assert compared > 800


def test_classes_get_columns_in_order_of_appearance():
    rows, labels, weights, served = stream(6, n=3000, task="multiclass")
    texts = [f'"class {14 - label}"' for label in range(14)]
    groups = [GROUPS[1], GROUPS[2], GROUPS[6]]
    batch = batch_of(rows, labels, weights, served, 12, tuple(texts))
    stage = HistoryColumns(groups, inputs_of_width(12), 12, "multiclass")
    out = stage.learn(batch)
    learned = labels[(weights > 0) & (labels == labels)].astype(int).tolist()
    first = list(dict.fromkeys(learned))[:10]
    assert len(set(learned)) > 10
    numbers = [NAN if y != y else float(first.index(y)) if y in first else -1.0 for y in labels]
    names = [
        f"{name}=class {14 - label}" if of_class else name
        for name, of_class in (
            [("shop.x.last", False), ("shop.x.change", False), ("shop.since", False)]
            + [(f"shop.labels.{lag}", True) for lag in (1, 2, 3)]
            + [
                (f"shop{'.x' if stat in ALL[4:9] else ''}.{stat}.{h}", stat == "label_mean")
                for stat in ALL[3:]
                for h in ("1d", "1w")
            ]
            + [("card*shop.since", False), ("card*shop.labels.1", True)]
            + [(f"card*shop.{stat}.7d", False) for stat in ("count", "label_count")]
            + [("card*shop.label_mean.7d", True)]
            + [(f"city.labels.{lag}", True) for lag in range(1, 9)]
        )
        for label in (first if of_class else [0])
    ]
    assert stage.names == names
    features = hash_names(names, 12).tolist()
    reference = Reference(groups, classes=10)
    assert rows_of(out) == expected(reference, features, (rows, numbers, weights, served))
    single = HistoryColumns(groups, inputs_of_width(12), 12, "multiclass")
    assert same_batches(learn_in(single, batch, [1, 3]), out)
    assert as_bytes(single.state()) == as_bytes(stage.state())
    restored = HistoryColumns(groups, inputs_of_width(12), 12, "multiclass")
    restored.restore(stage.state())
    assert restored.names == names
    assert same_batches(restored.peek(batch), stage.peek(batch))


def test_extremes_leave_a_finite_state():
    groups = [
        group("card", half_life=("1s", "1h", "36500d"), labels=2),
        group("card", half_life=(0.1, 1, 1e9), labels=2),
    ]
    rng, n = np.random.default_rng(7), 3000
    times = rng.choice([-1e100, -1e18, 0, 1.7e9, 1.7e9 + 1e-3, 1e18, 1e100], n)
    numbers = rng.choice([-1e100, -1, 0, 1e-100, 1e-299, 5, 1e100], n)
    rows = [
        ({3: 1e100}, {"card": 5.0, "at": t, "x": x}) for t, x in zip(times, numbers, strict=True)
    ]
    labels = rng.choice([-1e100, 0, 1, 1e-300, 1e100], n)
    stage = HistoryColumns(groups, inputs_of_width(3), 3, "regression")
    out = stage.learn(batch_of(rows, labels, np.ones(n), np.full(n, NAN), 3))
    state = stage.state()
    assert all(np.isfinite(array).all() for array in state.values())
    Batch(out.indptr, out.indices, out.values, out.labels, out.weights, out.dim)  # numbers to 1e100
    stage.restore(state)


def test_a_state_round_trips_and_a_damaged_one_changes_nothing(subtests):
    batch = batch_of(*stream(8, n=800), 10)
    stage = HistoryColumns(GROUPS, inputs_of_width(10), 10, "binary")
    stage.learn(batch[:500])
    state, other = stage.state(), HistoryColumns(GROUPS, inputs_of_width(10), 10, "binary")
    other.restore(state)
    assert same_batches(other.learn(batch[500:]), stage.learn(batch[500:]))
    before = as_bytes(other.state())
    assert before == as_bytes(stage.state())

    def changed(name, **change):
        array = state[name].copy()
        array.flat[change["at"]] = change["to"]
        return state | {name: array}

    used = int(np.flatnonzero(state["table"])[0])
    damaged = {
        "no table": {name: array for name, array in state.items() if name != "table"},
        "shape": state | {"numbers": state["numbers"][:-1]},
        "NaN": changed("numbers", at=0, to=NAN),
        "infinite": changed("totals", at=1, to=math.inf),
        "type": state | {"table": state["table"].astype(np.float64)},
        "a key without a row": changed("table", at=used, to=0),
        "a later row": changed("clock", at=0, to=1),
        "negative": changed("counts", at=0, to=-1),
    }
    for name, one in damaged.items():
        with subtests.test(name), pytest.raises(CorruptState):
            other.restore(one)
        assert as_bytes(other.state()) == before


def test_rows_of_another_width_are_refused():
    stage = HistoryColumns(GROUPS, inputs_of_width(10), 10, "binary")
    with pytest.raises(ShapeMismatch):
        stage.learn(batch_of(*stream(9, n=2, bits=9), 9))


def test_the_size_of_the_tables_is_the_one_of_the_specification():
    for task in ("binary", "multiclass"):
        stage = HistoryColumns(GROUPS, inputs_of_width(10), 10, task)
        assert abs(stage.nbytes - table_bytes(GROUPS, task)) < 64


def test_a_late_label_has_the_weight_of_its_row_and_moves_no_clock():
    groups = [group("shop", ("since", "label_count"), ("1h",), of=None)]
    stage = HistoryColumns(groups, inputs_of_width(10), 10, "binary")
    since, count = hash_names(stage.names, 10).tolist()

    def step(at, label, weight, served=NAN):
        row = [({}, {"shop": 7.0, "at": 1e9 + at})]
        return rows_of(stage.learn(batch_of(row, [label], [weight], [served], 10)))[0]

    step(0, NAN, 0.0)
    step(3600, NAN, 0.0)
    assert step(0, 1.0, 1.0, served=0.5) == {}
    assert step(3600, 1.0, 0.0) == {count: 0.5}
    assert step(7200, 1.0, 0.0) == {count: 0.25, since: pytest.approx(math.log1p(3600))}


def test_a_late_label_of_a_row_without_a_value_enters_no_group_of_values():
    groups = [
        group("shop", ("mean", "label_count"), ("1h",), labels=1),
        group("card", (), (), of=None, labels=1),
    ]
    stage = HistoryColumns(groups, inputs_of_width(10), 10, "binary")
    names = dict(zip(hash_names(stage.names, 10).tolist(), stage.names, strict=True))

    def step(label, weight, served=NAN, **cells):
        row = [({}, {"shop": 7.0, "card": 5.0, "at": 1e9} | cells)]
        out = rows_of(stage.learn(batch_of(row, [label], [weight], [served], 10)))[0]
        return {names[j]: x for j, x in out.items()}

    step(NAN, 0.0, x=3.0)
    step(NAN, 0.0)
    step(1.0, 1.0, served=0.5)
    assert step(1.0, 0.0, x=3.0) == {"shop.x.mean.1h": 3.0, "card.labels.1": 1.0}
    assert stage.counts[0]["lost_labels"] == 0
