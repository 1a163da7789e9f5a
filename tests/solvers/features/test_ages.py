"""Ages of times: the definition, and the contract of learners behind the stage."""

import math
import random

import numpy as np
import pytest

from dualstream.solvers import Batch, CorruptState, explain, make_learner, resolve_spec
from dualstream.solvers.offline.refit_methods import refit_methods
from dualstream.solvers.protocols.learner import under
from dualstream.solvers.protocols.unlearner import why_not_unlearn
from dualstream.solvers.refit.refit import begin_refit, enter_refit, problems_of
from dualstream.solvers.rows.hashing import NameIndices, hash_row
from tests.solvers.staging import batch_of, rows_of
from tests.solvers.support import as_bytes

BITS = 8
FEATURES = {"kind": "hashed", "bits": BITS}
AGED = {"kind": "time", "parts": ["age"]}
COLUMNS = {"types": {"at": AGED, "seen.at": AGED, "born": "time"}}
PLACES = NameIndices(BITS)
AT, SEEN, SPIKE = (PLACES[name] for name in ("at.age", "seen.at.age", "spike"))
SPECS = {
    "sgd": {"algorithm": "sgd"},
    "dual_ascent": {"algorithm": "dual_ascent", "scaling": "balanced", "norm": "running"},
    "regression": {"algorithm": "sgd", "task": "regression"},
    "classes": {"algorithm": "sgd", "task": "multiclass"},
    "splines": {"algorithm": "splines"},
    "portfolio": {"members": "full"},
    "portfolio of classes": {"members": "full", "task": "multiclass"},
}
N = 120


def spec_of(name, columns=COLUMNS):
    return resolve_spec(SPECS[name] | {"features": FEATURES, "columns": columns})


def rows(seed, count, bad):
    """Rows as readers make them: times mostly rise, some are late, before 1970 or missing.

    Those of `bad` have a spike.
    """
    rng = random.Random(seed)
    results = []
    for n in range(count):
        row = {"price": rng.gauss(0, 1), "site": rng.choice("abc")}
        if rng.random() < 0.8:
            row["at.age"] = 1_000.0 * n - 60_000.0 - rng.choice([0.0, 0.25, 3_600.0, 1e9])
        if rng.random() < 0.4:
            row["seen.at.age"] = rng.choice([1e-6, 1_700_000_000.5, -5e9, 1e9 + n])
        results.append(row | ({"spike": 1e100} if n in bad else {}))
    return results


def stream(name, seed=0, count=N, bad=()):
    rng = np.random.default_rng(seed)
    hashed = [dict(zip(*hash_row(row, PLACES), strict=True)) for row in rows(seed, count, bad)]
    weights = np.where(rng.random(count) < 0.1, 0.0, 1.0)
    weights[list(bad)] = 1.0
    made = batch_of(hashed, 1 << BITS, (rng.random(count) < 0.5) * 1.0, weights)
    return of_classes(made, ("0", "1") if SPECS[name].get("task") == "multiclass" else ())


def of_classes(made, classes):
    mine = (made.indptr, made.indices, made.values, made.labels, made.weights)
    return Batch(*mine, made.dim, classes)


def with_ages(batch, newest=None):
    """The definition, row by row; with `newest` no row moves it."""
    learns, results = newest is None, []
    newest = {AT: -math.inf, SEEN: -math.inf} if newest is None else newest
    for row, weight in zip(rows_of(batch), batch.weights, strict=True):
        last = {j: max(newest[j], row[j]) for j in newest if j in row}
        aged = row | {j: math.log(1.0 + (last[j] - row[j])) for j in last}
        results.append({j: x for j, x in aged.items() if x != 0.0})
        if weight > 0.0 and learns:
            newest |= last
    return of_classes(batch_of(results, batch.dim, batch.labels, batch.weights), batch.classes)


@pytest.mark.parametrize("name", SPECS)
def test_learners_see_the_ages_of_the_definition(name):
    learner, plain = make_learner(spec_of(name)), make_learner(spec_of(name, {}))
    inputs = stream(name)
    outcome, expected = learner.learn(inputs), plain.learn(with_ages(inputs))
    assert outcome.scores.tobytes() == expected.scores.tobytes()
    assert as_bytes(under("core.", learner.state())) == as_bytes(plain.state())
    assert learner.weights.tobytes() == plain.weights.tobytes()
    assert learner.samples == plain.samples
    assert hasattr(learner, "members") == hasattr(plain, "members")
    counted = [row for row, weight in zip(rows_of(inputs), inputs.weights, strict=True) if weight]
    newest = {j: max(row[j] for row in counted if j in row) for j in (AT, SEEN)}
    request = stream(name, seed=5)
    expected = with_ages(request, newest)
    assert learner.predict(request).tobytes() == plain.predict(expected).tobytes()
    if inputs.classes:
        result = learner.predict_classes(request)
        assert result.scores.tobytes() == plain.predict_classes(expected).scores.tobytes()
    one, other = explain(learner, request[3:4]), explain(plain, expected[3:4])
    assert one.contributions.tobytes() == other.contributions.tobytes()


@pytest.mark.parametrize("name", SPECS)
def test_batch_equals_rows_and_restored_learner_continues(name):
    inputs = stream(name)
    whole, single, other = (make_learner(spec_of(name)) for _ in range(3))
    whole.learn(inputs)
    for i in range(N):
        if i == N // 3:
            other.learn(stream(name, seed=1, count=9))
            other.restore(single.state())
            single = other
        before, row = as_bytes(single.state()), inputs[i : i + 1]
        score = single.predict(row)
        assert as_bytes(single.state()) == before
        assert single.learn(row).scores.tobytes() == score.tobytes() or inputs.classes
    assert as_bytes(whole.state()) == as_bytes(single.state())


def test_rejected_rows_have_moved_the_newest_time():
    inputs = stream("regression", bad=[20])
    learner = make_learner(spec_of("regression"))
    learner.learn(batch_of([{SPIKE: 1e60}], 1 << BITS, [1e80]))
    # The square of a score of a spike overflows now.
    assert learner.learn(inputs[20:21]).rejected.all()
    moved = rows_of(inputs)[20]
    newest = [moved.get(j, -1e300) for j in sorted((AT, SEEN))]
    assert learner.state()["ages.newest"].tolist() == newest
    expected = with_ages(inputs[21:22], dict(zip(sorted((AT, SEEN)), newest, strict=True)))
    assert rows_of(learner.as_served(inputs[21:22])) == rows_of(expected)


def test_an_observed_row_moves_the_newest_time_and_a_late_label_does_not():
    learner, plain = make_learner(spec_of("sgd")), make_learner(spec_of("sgd", {}))
    observed = batch_of([{AT: 5000.0}], 1 << BITS, [np.nan], np.zeros(1))
    outcome = learner.learn(observed)
    assert outcome.observed.tolist() == outcome.rejected.tolist() == [True]
    assert (learner.samples, learner.observed) == (0, 1)
    row = batch_of([{AT: 4000.0}], 1 << BITS, [1.0])
    served = learner.as_served(row)
    assert rows_of(served) == [{AT: math.log(1001.0)}]
    late = Batch(*(getattr(served, name) for name in ("indptr", "indices", "values")),
                 np.array([1.0]), np.ones(1), 1 << BITS, (), np.array([0.25]))  # fmt: skip
    learner.learn(batch_of([{AT: 9000.0}], 1 << BITS, [np.nan], np.zeros(1)))
    learner.learn(late)
    plain.learn(served.with_labels([1.0]))
    assert learner.weights.tobytes() == plain.weights.tobytes()
    assert learner.state()["ages.newest"].max() == 9000.0


@pytest.mark.parametrize("name", ["sgd", "dual_ascent"])
def test_a_refit_enters_a_model_with_ages(name):
    learner, plain = make_learner(spec_of(name)), make_learner(spec_of(name, {}))
    inputs = stream(name)
    learner.learn(inputs)
    plain.learn(with_ages(inputs))
    for one, rows in ((learner, inputs), (plain, with_ages(inputs))):
        refit = begin_refit(problems_of(one), refit_methods(one.spec)[0], 1e-6, 200, rows)
        assert refit.run()
        enter_refit(one, refit.refitted().arrays)
    assert as_bytes(under("core.", learner.state())) == as_bytes(plain.state())


def test_a_window_of_a_refit_counts_ages_from_its_first_row():
    learner, inputs = make_learner(spec_of("sgd")), stream("sgd")
    learner.learn(stream("sgd", seed=3))
    before = as_bytes(learner.state())
    seen, _ = learner.window(inputs)
    assert [dict(row) for row in rows_of(seen)] == rows_of(with_ages(inputs))
    assert as_bytes(learner.state()) == before


def test_a_damaged_state_is_refused_and_changes_nothing():
    learner = make_learner(spec_of("portfolio"))
    learner.learn(stream("portfolio"))
    before = as_bytes(learner.state())
    for newest in (np.zeros(3), np.full(2, np.nan)):
        with pytest.raises(CorruptState):
            learner.restore(learner.state() | {"ages.newest": newest})
    assert as_bytes(learner.state()) == before


def test_models_without_an_age_have_no_stage():
    plain = make_learner(spec_of("sgd", {"types": {"at": "time"}}))
    assert not any(name.startswith("ages.") for name in plain.state())
    spec = {"algorithm": "dual_ascent", "features": FEATURES, "columns": COLUMNS}
    assert why_not_unlearn(resolve_spec(spec | {"columns": {}})) is None
    assert "`age`" in why_not_unlearn(resolve_spec(spec))
