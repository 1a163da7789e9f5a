"""Pairs of categories as features of members that have `pairs`."""

from itertools import combinations

import numpy as np
import pytest

from dualstream.solvers import (
    Batch,
    CorruptState,
    InvalidSpec,
    NotExpressible,
    explain,
    make_learner,
    resolve_spec,
)
from dualstream.solvers.portfolio.learner import JOINS_AT
from dualstream.solvers.portfolio.pairs import (
    CATEGORIES,
    MOST_NUMBER,
    number_cell,
    number_columns,
    pair_cell,
    shared_with_both,
    with_pairs,
)
from dualstream.solvers.portfolio.spec import MAX_ONES, PAIR_CELLS

SHOPS, ARTICLES, N = 12, 10, 1500
DIM = SHOPS + ARTICLES + 1
PAIRED = {"kind": "diagonal_newton", "name": "paired", "pairs": True}
PLAIN = {"kind": "diagonal_newton", "name": "plain"}
COLUMNS = {"columns": {"types": {"shop": "category", "article": "category", "price": "number"}}}


def spec_of(task="regression", members=(PLAIN, PAIRED)):
    features = {"kind": "indexed", "dim": DIM}
    return {"task": task, "algorithm": "portfolio", "members": list(members), "features": features}


def sales(acts_together, task="regression", seed=0):
    """Rows of a shop, an article and a number, whose target is that of a shop's article."""
    rng = np.random.default_rng(seed)
    shop, article = rng.integers(0, SHOPS, N), rng.integers(0, ARTICLES, N)
    level = rng.normal(size=(SHOPS, ARTICLES)) if acts_together else np.zeros((SHOPS, ARTICLES))
    level = level + rng.normal(size=(SHOPS, 1))
    x = np.zeros((N, DIM))
    x[np.arange(N), shop] = x[np.arange(N), SHOPS + article] = 1.0
    x[:, -1] = rng.normal(size=N)
    y = 100.0 + level[shop, article] + 0.3 * rng.normal(size=N)
    return Batch.from_dense(x, np.where(y > 100.0, 1.0, -1.0) if task == "binary" else y)


def assert_same_state(one, other):
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])


def losses(learner):
    return {view.name: view.loss for view in learner.members()}


def test_two_entries_of_value_1_are_a_pair():
    rng = np.random.default_rng(0)
    x = rng.choice([0.0, 1.0, 2.5], (50, 20))
    rows = with_pairs(Batch.from_dense(x, np.zeros(50)), 20, CATEGORIES)
    for i, row in enumerate(x):
        indices = rows.indices[rows.indptr[i] : rows.indptr[i + 1]]
        ones = np.flatnonzero(row == 1.0)[:MAX_ONES].tolist()
        pairs = {20 + pair_cell(*pair) for pair in combinations(ones, 2)}
        present = np.flatnonzero(row).tolist()
        assert indices[: len(present)].tolist() == present
        assert sorted(indices[len(present) :].tolist()) == sorted(pairs)
        values = rows.values[rows.indptr[i] : rows.indptr[i + 1]]
        np.testing.assert_array_equal(values, [*row[present], *[1.0] * len(pairs)])
    assert rows.dim == 20 + PAIR_CELLS


def test_cells_differ_and_are_spread():
    cells = [pair_cell(a, b) for a in range(300) for b in range(a + 1, 300)]
    assert min(cells) >= 0 and max(cells) < PAIR_CELLS
    expected = PAIR_CELLS * -np.expm1(-len(cells) / PAIR_CELLS)
    assert abs(len(set(cells)) - expected) < 500


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_a_member_with_pairs_earns_its_share_where_categories_act_together(task):
    learner = make_learner(resolve_spec(spec_of(task)))
    learner.learn(sales(True, task))
    by_name = losses(learner)
    assert by_name["paired"] < 0.85 * by_name["plain"]
    apart = make_learner(resolve_spec(spec_of(task)))
    apart.learn(sales(False, task))
    by_name = losses(apart)
    assert by_name["plain"] < by_name["paired"]


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_batches_rows_and_restored_states_give_the_same_bits(task):
    spec, batch = resolve_spec(spec_of(task)), sales(True, task)[:300]
    whole, single = make_learner(spec), make_learner(spec)
    scores = whole.learn(batch).scores
    one_by_one = [single.learn(batch[i : i + 1]).scores[0] for i in range(150)]
    other = make_learner(spec)
    other.restore(single.state())
    one_by_one += other.learn(batch[150:]).scores.tolist()
    np.testing.assert_array_equal(scores, one_by_one)
    assert_same_state(whole.state(), other.state())
    assert whole.predict(batch[:5]).tolist() == other.predict(batch[:5]).tolist()


def test_classes_have_members_with_pairs():
    features = {"kind": "hashed", "bits": 10}
    spec = resolve_spec({**COLUMNS, "task": "multiclass", "features": features})
    rows = sales(True)[:120]
    labels = np.digitize(rows.labels, np.quantile(rows.labels, [0.3, 0.6])).astype(float)
    columns = rows.indptr, rows.indices, rows.values, labels, rows.weights
    batch = Batch(*columns, 1024, ("a", "b", "c"))
    whole, single = make_learner(spec), make_learner(spec)
    scores = whole.learn(batch).scores
    one_by_one = [single.learn(batch[i : i + 1]).scores[0] for i in range(120)]
    np.testing.assert_array_equal(scores, one_by_one)
    other = make_learner(spec)
    other.restore(whole.state())
    assert_same_state(other.state(), single.state())
    assert any("pairs-dual-30" in str(bytes(a)) for n, a in whole.state().items() if "about" in n)


def test_a_damaged_state_is_refused():
    learner = make_learner(resolve_spec(spec_of()))
    learner.learn(sales(True)[:100])
    state = learner.state()
    for name, value in (
        ("crew.1.touched", DIM + PAIR_CELLS),
        ("crew.1.rule.shared", np.nan),
        ("crew.1.rule.roles", 7),
    ):
        damaged = {key: array.copy() for key, array in state.items()}
        damaged[name].flat[-1] = value
        with pytest.raises(CorruptState):
            make_learner(learner.spec).restore(damaged)
    lacking = {name: array for name, array in state.items() if name != "crew.1.rule.shared"}
    with pytest.raises(CorruptState):
        make_learner(learner.spec).restore(lacking)


def test_a_pair_counts_half_for_each_of_its_features():
    learner = make_learner(resolve_spec(spec_of()))
    batch = sales(True)
    learner.learn(batch)
    learner.promote("paired")
    for row in (batch[:1], Batch.from_dense(np.zeros((1, DIM)), [0.0])):
        explained = explain(learner, row)
        assert set(explained.features.tolist()) <= set(range(DIM))
        assert explained.score == pytest.approx(explained.base + explained.contributions.sum())
    new = Batch.from_dense([[1.0, 1.0, 0.0]], [0.0])
    features, contributions = np.array([1, 3 + pair_cell(0, 1)]), np.array([2.0, 0.5])
    lacking, features, shared = shared_with_both(new, 3, CATEGORIES, features, contributions)
    assert (lacking, features.tolist(), shared.tolist()) == (0.5, [1], [2.0])
    assert len(learner.member_weights("paired")[0]) == DIM
    with pytest.raises(NotExpressible, match="pairs"):
        learner.member_form("paired")
    with pytest.raises(NotExpressible, match="pairs"):
        learner.form()
    assert learner.member_form("plain").dim == DIM


def test_members_with_pairs_can_come_and_go():
    learner = make_learner(resolve_spec(spec_of("binary")))
    batch = sales(True, "binary")
    learner.learn(batch[:1000])
    name = learner.add_member({"kind": "dual_ascent", "pairs": True, "strength": 0.1})
    learner.learn(batch[1000:])
    assert losses(learner)[name] < 0.85 * losses(learner)["plain"]
    learner.remove_member("paired")
    learner.remove_member(name)
    assert learner.names == ["plain"]
    learner.form()


def test_presets_have_pairs_if_columns_are_categories():
    named = [view.name for view in make_learner(resolve_spec(COLUMNS)).members()]
    assert named[-2:] == ["pairs-dual-30", "stack"]
    numbers = resolve_spec({**COLUMNS, "task": "regression", "members": "fast"})
    named = [view.name for view in make_learner(numbers).members()]
    assert named[-3:] == ["pairs-dual-0.1", "pairs-newton-0.99", "stack"]
    assert resolve_spec(resolve_spec(COLUMNS))["pairs"] is True
    many = {"columns": {"types": {f"c{n}": "category" for n in range(MAX_ONES + 1)}}}
    for off in (
        {"columns": {"types": {"shop": "category", "new": "boolean"}}},
        {**COLUMNS, "crosses": [["shop", "article"]]},
        {**COLUMNS, "pairs": False},
        many,
    ):
        assert resolve_spec(off)["pairs"] is False
        names = [view.name for view in make_learner(resolve_spec(off)).members()]
        assert not any(name.startswith("pairs") for name in names)
    assert resolve_spec({**many, "pairs": True})["pairs"] is True
    for without in ({}, {**COLUMNS, "members": "eight"}, {**COLUMNS, "algorithm": "sgd"}):
        assert "pairs" not in resolve_spec(without)
        with pytest.raises(InvalidSpec) as error:
            resolve_spec({**without, "pairs": True})
        assert error.value.field == "/pairs"
    wide = spec_of() | {"features": {"kind": "indexed", "dim": 2**31 - 1 - PAIR_CELLS}}
    for wrong, field in (
        ({**COLUMNS, "pairs": 1}, "/pairs"),
        (spec_of(members=[{"kind": "prior", "pairs": True}]), "/members/0/pairs"),
        (wide, "/members/1/pairs"),
        *(
            (spec_of(members=[{"kind": "dual_ascent", "pairs": pairs}]), "/members/0/pairs")
            for pairs in ([1], [2, 1], [1, 1], [0, DIM], [-1, 1], [0, True], list(range(9)))
        ),
    ):
        with pytest.raises(InvalidSpec) as error:
            resolve_spec(wrong)
        assert error.value.field == field


def test_two_small_whole_numbers_are_a_pair():
    rng = np.random.default_rng(0)
    columns = np.array([0, 3, 4, 9])
    x = rng.choice([0.0, 1.0, 7.0, MOST_NUMBER, MOST_NUMBER + 1.0, 2.5, -1.0], (200, 12))
    rows = with_pairs(Batch.from_dense(x, np.zeros(200)), 12, columns)
    for i, row in enumerate(x):
        begin, end = rows.indptr[i], rows.indptr[i + 1]
        pairs = [
            12 + number_cell(number, int(row[a]), int(row[b]))
            for number, (a, b) in enumerate(combinations(columns, 2))
            if {row[a], row[b]} <= {0.0, 1.0, 7.0, MOST_NUMBER}
        ]
        assert rows.indices[begin:end].tolist() == [*np.flatnonzero(row), *pairs]
        np.testing.assert_array_equal(
            rows.values[begin:end], [*row[row != 0.0], *[1.0] * len(pairs)]
        )
    assert number_cell(MAX_ONES * (MAX_ONES - 1) // 2 - 1, MOST_NUMBER, MOST_NUMBER) < PAIR_CELLS


def columns_of(*columns):
    """The choice among columns, each repeated to 60 rows."""
    return number_columns(
        Batch.from_dense(np.stack([np.resize(c, 60) for c in columns], axis=1), np.zeros(60))
    )


def test_columns_of_small_whole_numbers_are_chosen():
    hour, flag, real = np.arange(24.0), [0.0, 1.0], [0.5, 1.0, 2.0]
    assert columns_of(real, hour, flag, [1.0]) == [1, 2, 3]
    assert columns_of([0.0], hour) == []
    assert columns_of(flag, flag, [2.0, 3.0]) == []
    assert columns_of(hour, real, hour + 8.0, -hour) == [0, 2]
    assert columns_of(hour, real, hour + 9.0, -hour) == []
    flags = [flag] * MAX_ONES
    assert columns_of(*flags, hour) == []
    assert columns_of(*flags, hour, [5.0, 6.0, 7.0]) == [MAX_ONES, MAX_ONES + 1]
    assert columns_of(*[hour] * (MAX_ONES + 1)) == []
    assert number_columns(Batch.from_dense(np.zeros((0, 3)), [])) == []


def demand(rows=JOINS_AT + 700, seed=0):
    """Rows of hour, weekday and a number, in no order, with a target for each hour of a weekday."""
    rng = np.random.default_rng(seed)
    hour, weekday = rng.integers(0, 24, rows), rng.integers(0, 7, rows)
    level = rng.normal(size=(24, 7))
    x = np.stack([hour, weekday, rng.normal(size=rows)], axis=1)
    return Batch.from_dense(x, level[hour, weekday] + 0.1 * rng.normal(size=rows))


def numbers_spec(**fields):
    features = {"kind": "indexed", "dim": 3}
    return resolve_spec({"task": "regression", "members": "fast", "features": features, **fields})


def test_a_stream_with_columns_of_small_whole_numbers_gets_a_member_for_their_pairs():
    spec, batch = numbers_spec(), demand()
    whole, single, before = make_learner(spec), make_learner(spec), make_learner(spec)
    scores = whole.learn(batch).scores
    first = single.learn(batch[: JOINS_AT - 2]).scores
    before.restore(single.state())
    last = [before.learn(batch[i : i + 1]).scores[0] for i in range(JOINS_AT - 2, JOINS_AT + 3)]
    assert before.names[-1] == "number-pairs" and len(before.names) == len(single.names) + 1
    after = make_learner(spec)
    after.restore(before.state())
    rest = after.learn(batch[JOINS_AT + 3 :]).scores
    np.testing.assert_array_equal(scores, [*first, *last, *rest])
    assert_same_state(whole.state(), after.state())
    view = whole.members()[-1]
    assert (view.spec["pairs"], view.spec["base"]) == ([0, 1], "mean")
    assert view.rolling_loss < 0.9 * losses(whole)["net"]
    for row in (batch[:1], Batch.from_dense([[0.0, 0.0, 1.0]], [0.0])):
        explained = explain(whole, row)
        assert set(explained.features.tolist()) <= set(range(3))
        assert explained.score == pytest.approx(explained.base + explained.contributions.sum())
    walk = make_learner(spec)
    walk.learn(batch.with_labels(np.cumsum(batch.labels))[:JOINS_AT])
    assert walk.members()[-1].spec["base"] == "last"
    with pytest.raises(NotExpressible, match="number_pairs"):
        whole.member_form("number-pairs")
    whole.remove_member("number-pairs")
    whole.learn(batch[:50])
    assert "number-pairs" not in whole.names


def test_no_member_for_pairs_of_numbers_joins():
    batch = demand(JOINS_AT)
    learner = make_learner(numbers_spec(number_pairs=False))
    learner.learn(batch)
    assert "number-pairs" not in learner.names
    real = Batch.from_dense(np.full((5, 3), 0.5), np.zeros(5))
    learner = make_learner(numbers_spec())
    learner.learn(real)
    learner.learn(batch[: JOINS_AT - 5])
    assert "number-pairs" not in learner.names
    promoted, named = make_learner(numbers_spec()), make_learner(numbers_spec())
    promoted.promote("net")
    named.add_member({"name": "number-pairs", "algorithm": "splines"})
    for one in (promoted, named):
        names = one.names
        one.learn(batch)
        assert one.names == names
    for wrong in ({"task": "binary"}, {"members": "ten"}, {"algorithm": "sgd"}):
        spec = {"task": "regression", **wrong, "number_pairs": True}
        with pytest.raises(InvalidSpec) as error:
            resolve_spec(spec)
        assert error.value.field == "/number_pairs"
    assert resolve_spec({"task": "regression"})["number_pairs"] is True
    assert "number_pairs" not in resolve_spec({"task": "regression", "members": "ten"})
