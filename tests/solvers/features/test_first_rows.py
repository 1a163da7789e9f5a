"""Broken numbers among the first rows of a stream: they are replaced, and do no lasting damage."""

import math
from functools import cache, partial

import numpy as np
import pytest

from dualstream.solvers import Batch, CorruptState, dump, explain, make_learner, resolve_spec
from dualstream.solvers.features.first_rows import ROWS, sound_rows
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.rows.class_names import class_indices, class_text
from dualstream.solvers.spec.make_learner import _make_member

N, DIM = (60, 5) if DISABLED else (3000, 5)
FEATURES = {"features": {"kind": "indexed", "dim": DIM}}
NUMBERS = {
    "full": {"members": "full"},
    "fast": {"members": "fast"},
    "ten": {"members": "ten"},
    "net": {"algorithm": "net"},
    "neighbours": {"algorithm": "neighbours"},
    "splines": {"algorithm": "splines"},
    "boosted": {"algorithm": "boosted"},
}
CLASSES = {name: NUMBERS[name] for name in ("full", "net", "neighbours", "splines")}
SPECS = (
    {f"numbers {name}": spec | {"task": "regression"} for name, spec in NUMBERS.items()}
    | {f"binary {name}": spec for name, spec in CLASSES.items()}
    | {
        "classes full": {"members": "full", "task": "multiclass"},
        "classes net": {"algorithm": "net", "task": "multiclass"},
        "classes splines": {"algorithm": "splines", "task": "multiclass"},
    }
)


def spec_of(name, **fields):
    return resolve_spec(SPECS[name] | FEATURES | fields)


def make_unguarded(name):
    """The learner, which does not start again."""
    return _make_member(spec_of(name))


@cache
def table():
    rng = np.random.default_rng(0)
    x = 3.0 * rng.normal(size=(N, DIM)) + 1.0
    y = x @ [1.0, -2.0, 0.5, 1.0, 0.0] + 2.0 * np.abs(x[:, 0]) + 0.5 * rng.normal(size=N)
    return x, y


def rows_of(name, x, y, weights=None):
    """Rows as the model of SPECS takes them; `y` are numbers."""
    task = SPECS[name].get("task", "binary")
    batch = Batch.from_dense(x, y, weights)
    if task == "binary":
        return batch.with_labels(np.where(table()[1] > 5.0, 1.0, -1.0)[: len(y)])
    if task == "multiclass":
        texts = [class_text(int(z)) for z in np.clip(table()[1][: len(y)] / 6.0, -1.0, 2.0)]
        return batch.with_labels(*class_indices(texts))
    return batch


def loss(name, batch, truth):
    """The mean loss of rows 1,001 on: absolute errors, or log-losses."""
    out = make_learner(spec_of(name)).learn(batch)
    errors = np.abs(out.scores - truth) if "numbers" in name else out.losses
    return float(errors[1000:].mean())


@cache
def unbroken(name):
    return loss(name, rows_of(name, *table()), table()[1])


BREAKS = {
    "first label": [(0, None, 1e100)],
    "first label, less": [(0, None, -1e100)],
    "first label, 1e6": [(0, None, 1e6)],
    "second and third label": [(1, None, 1e100), (2, None, -1e7)],
    "last label of the first rows": [(ROWS - 1, None, 1e100)],
    "first value": [(0, 0, 1e100)],
    "first row": [(0, column, -1e6) for column in range(DIM)],
    "tenth value": [(9, 1, 1e100)],
    "three of one column": [(row, 0, 10.0 ** (6 * row + 6)) for row in range(1, 4)],
}


def broken(case):
    x, y = (one.copy() for one in table())
    for row, column, number in BREAKS[case]:
        if column is None:
            y[row] = number
        else:
            x[row, column] = number
    return x, y


CASES = [
    (name, case) for name in SPECS for case in BREAKS if "numbers" in name or "label" not in case
]


@pytest.mark.skipif(DISABLED, reason="too many rows without a compiler")
@pytest.mark.parametrize(("name", "case"), CASES)
def test_models_recover(name, case):
    x, y = broken(case)
    assert loss(name, rows_of(name, x, y), table()[1]) < 1.1 * unbroken(name)


@pytest.mark.parametrize("name", SPECS)
def test_after_the_first_rows_a_model_is_one_that_never_had_the_broken_number(name):
    case = "first value" if "numbers" not in name else "first label"
    batch = rows_of(name, *broken(case))
    first = sound_rows(batch[:ROWS], "numbers" in name)
    earlier, sound = make_unguarded(name), make_learner(spec_of(name))
    earlier.learn(first.with_labels(first.labels, batch.classes))
    out = earlier.learn(batch[ROWS:N])
    result = sound.learn(batch)
    assert result.scores[ROWS:].tobytes() == out.scores.tobytes()
    mine = sound.state()
    assert mine.pop("first.samples") == 0
    assert dump(mine, {}) == dump(earlier.state(), {})
    assert sound.samples == len(batch)


@pytest.mark.parametrize("name", SPECS)
def test_without_broken_numbers_nothing_changes(name):
    batch = rows_of(name, *table())[:100]
    one, other = make_learner(spec_of(name)), make_unguarded(name)
    assert one.learn(batch).scores.tobytes() == other.learn(batch).scores.tobytes()
    assert dump(one.state(), {}) == dump(other.state() | {"first.samples": np.array(0)}, {})


@pytest.mark.parametrize("name", SPECS)
def test_any_batches_and_a_restored_state_give_the_same_bits(name):
    x, y = broken("three of one column")
    y[0] = 1e100
    weights = np.random.default_rng(1).choice([0.0, 0.5, 1.0, 3.0], N)
    batch = rows_of(name, x, y, weights)[:120]
    last = int(np.flatnonzero(weights)[ROWS - 1])
    whole, expected = make_learner(spec_of(name)), None
    scores = whole.learn(batch).scores
    for ends in ([1, 2, 9, last, last + 1, last + 2, 120], [last, 120], [last + 1, 120], [30, 120]):
        model, start, results = make_learner(spec_of(name)), 0, []
        for end in ends:
            restored = make_learner(spec_of(name))
            restored.restore(model.state())
            model = restored
            results.append(model.learn(batch[start:end]).scores)
            start = end
        assert np.concatenate(results)[last + 1 :].tobytes() == scores[last + 1 :].tobytes()
        expected = expected or dump(model.state(), {})
        assert dump(model.state(), {}) == expected == dump(whole.state(), {})
    assert whole.samples == len(batch) and whole.state()["first.samples"] > 0


@pytest.mark.parametrize("unweighted", [0, 600])
def test_a_member_that_joins_in_the_batch_that_starts_again_gives_the_same_bits(unweighted):
    spec = resolve_spec(
        {"task": "regression", "members": "fast", "features": {"kind": "indexed", "dim": DIM}}
    )
    draw, n = np.random.default_rng(5), unweighted + 600
    x = draw.integers(0, 9, (n, DIM)).astype(np.float64)
    x[:, 0] = draw.normal(size=n)
    x[unweighted + 3, 0] = 1e80
    weights = np.where(np.arange(n) < unweighted, 0.0, 1.0)
    batch = Batch.from_dense(x, x[:, 1] * (x[:, 2] > 4), weights)
    whole, parts = make_learner(spec), make_learner(spec)
    whole.learn(batch)
    for first in range(0, n, 50):
        parts.learn(batch[first : first + 50])
    assert "number-pairs" in [one.name for one in whole.members()]
    assert dump(whole.state(), {}) == dump(parts.state(), {})


def test_the_wrapped_model_answers_what_others_answer():
    model = make_learner(spec_of("binary full"))
    batch = rows_of("binary full", *broken("first value"))[:50]
    model.learn(batch)
    assert [one.name for one in model.members()][-1] == "stack"
    row = batch[40:41]
    assert explain(model, row).score == model.predict(row)[0]
    assert not hasattr(make_learner(spec_of("binary net")), "members")


CHANGES = {
    "promote": lambda model: model.promote("newton"),
    "remove": lambda model: model.remove_member("newton"),
    "add": lambda model: model.add_member({"name": "own", "algorithm": "splines"}),
}


def test_the_row_that_can_start_a_model_again_is_long():
    learner = make_learner(spec_of("numbers full"))
    x, y = table()
    learner.learn(Batch.from_dense(x[: ROWS - 2], y[: ROWS - 2]))
    assert not learner.has_long_row(1) and learner.has_long_row(2)
    learner.learn(Batch.from_dense(x[:2], y[:2]))
    assert not learner.has_long_row(1)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("rows", [0, 20])
def test_changes_to_the_members_are_kept(change, rows):
    batch = rows_of("numbers ten", *broken("first label"))[:50]
    model = make_learner(spec_of("numbers ten"))
    model.learn(batch[:rows])
    CHANGES[change](model)
    model.learn(batch[rows:])
    members = [{"name": one.name} | one.spec for one in model.members()]
    assert len(members) == {"promote": 10, "remove": 9, "add": 11}[change]
    other = make_learner(spec_of("numbers ten", members=members))
    other.learn(sound_rows(batch[:ROWS], True))
    if change == "promote":
        CHANGES[change](other)
    other.learn(batch[ROWS:])
    assert model.promoted == other.promoted
    assert dump(model.state(), {}) == dump(other.state(), {})


NAN, NINE = (partial(np.full_like, fill_value=number) for number in (np.nan, 9.0))


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        ("classes net", "first.weights", np.zeros_like),
        ("classes net", "first.labels", NINE),
        ("classes net", "no classes", None),
        ("binary net", "first.labels", NINE),
        ("numbers net", "first.labels", NAN),
        ("numbers net", "first.labels", lambda labels: labels * 1e100),
        ("numbers net", "first.values", lambda values: values * 1e200),
        ("numbers net", "first.values", lambda values: values[1:]),
        ("numbers net", "first.indices", lambda indices: indices + DIM),
        ("numbers net", "first.samples", lambda count: count + np.nan),
    ],
)
def test_damaged_first_rows_are_refused_and_change_nothing(kind, name, change):
    batch = rows_of(kind, *table())
    model, other = make_learner(spec_of(kind)), make_learner(spec_of(kind))
    model.learn(batch[:10])
    other.learn(batch[:5])
    before, state = dump(other.state(), {}), model.state()
    if change is None:
        fresh = make_learner(spec_of(kind)).state()
        damaged = fresh | {mine: state[mine] for mine in state if mine.startswith("first.")}
    else:
        damaged = state | {name: change(state[name])}
    with pytest.raises(CorruptState):
        other.restore(damaged)
    assert dump(other.state(), {}) == before
    other.restore(state)
    assert dump(other.state(), {}) == dump(state, {})


def sound_numbers(numbers):
    """The definition, number by number."""
    middle = sorted(numbers)[len(numbers) // 2]
    distances = sorted(abs(number - middle) for number in numbers)
    limit = math.inf
    for index in range(len(numbers) - 3, len(numbers)):
        smaller = [d for d in distances[:index] if d > 0.0]
        reach = {0: 125_000.0, 1: 125_000.0, 2: 350.0}.get(len(smaller), 50.0)
        scale = smaller[-1] if smaller else abs(middle)
        is_far = 0.0 < reach * scale < distances[index]
        if is_far:
            limit = min(limit, distances[index - 1])
    kept = [number for number in numbers if abs(number - middle) <= limit]
    return [min(max(number, min(kept)), max(kept)) for number in numbers]


@pytest.mark.parametrize("seed", range(4))
def test_broken_numbers_are_those_of_the_definition(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(ROWS, 5000))
    x[:, ::3] = np.exp(4.0 * x[:, ::3])
    x[:, 1::3] *= 10.0 ** rng.choice([0, 0, 0, 0, 0, 2, 3, 8, 100], (ROWS, len(x[0, 1::3])))
    x[:, ::7] += 1e3
    x[:, ::11] = np.where(rng.random((ROWS, len(x[0, ::11]))) < 0.1, x[:, ::11], 20.0)
    x = np.clip(x, -1e100, 1e100)
    x *= rng.random(x.shape) < rng.choice([0.03, 0.1, 0.5, 1.0, 1.0], 5000)
    labels = x[:, 1].copy()
    result = sound_rows(Batch.from_dense(x, labels), True)
    dense = np.zeros_like(x)
    dense[np.repeat(np.arange(ROWS), np.diff(result.indptr)), result.indices] = result.values
    expected = np.array([sound_numbers(column) for column in x.T.tolist()]).T
    assert np.array_equal(dense, np.where(x != 0.0, expected, 0.0))
    assert result.labels.tolist() == sound_numbers(labels.tolist())
    changed = (dense != x).any(0)
    assert 50 < changed.sum() < 4000
    assert sound_rows(Batch.from_dense(x[:, ~changed], labels), False) is None


def test_a_few_large_numbers_among_equal_ones_are_left_alone():
    x = np.full((ROWS, 3), -1.0)
    x[[3, 9, 20], [0, 1, 1]] = 12_345.0, 999.0, 5.0
    assert sound_rows(Batch.from_dense(x, x[:, 0]), True) is None
    x[3, 0] = 1e6
    result = sound_rows(Batch.from_dense(x, x[:, 1]), True)
    assert result.values[9] == -1.0
    assert result.labels.tolist() == x[:, 1].tolist()


def test_a_column_that_is_wide_and_rare_is_left_alone():
    ones = Batch.from_dense(np.eye(ROWS), np.ones(ROWS))
    assert sound_rows(ones, True) is None
    nothing = Batch.from_dense(np.zeros((ROWS, 3)), np.zeros(ROWS))
    assert sound_rows(nothing, True) is None
