"""Decisions of least expected cost: against brute force, and what they cost."""

import math
from dataclasses import replace

import numpy as np
import pytest

from dualstream.solvers import Batch, InvalidSpec, make_learner, resolve_spec
from dualstream.solvers.evaluation.decisions.class_monitor import ClassDecisions
from dualstream.solvers.evaluation.decisions.monitor import Decisions
from dualstream.solvers.online.class_costs import ClassCosts
from dualstream.solvers.protocols.learner import Outcome
from dualstream.solvers.rows.class_names import class_text

DIM = 3
FEATURES = {"features": {"kind": "indexed", "dim": DIM}}


def rows(n: int, seed: int = 0) -> Batch:
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(n, DIM))
    return Batch.from_dense(x, np.where(x[:, 0] + draw.normal(size=n) > 1.0, 1.0, -1.0))


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ({"false_positive": 1, "false_negative": 25}, 1 / 26),
        ({"false_negative": 3}, 1 / 4),
        ({"false_positive": 0.5}, 0.5 / 1.5),
        ({"false_positive": 0}, 0.0),
        ({"false_negative": 0}, 1.0),
        ({"false_positive": 1e-320, "false_negative": 1e12}, 0.0),
        ({"false_positive": 1e12, "false_negative": 1e-320}, 1.0),
    ],
)
def test_cut_is_the_probability_from_which_a_positive_label_costs_no_more(costs, expected):
    cut = Decisions(resolve_spec({"costs": costs})).cut
    assert 1 / (1 + math.exp(-max(-700, cut))) == pytest.approx(expected)


def test_figures_are_sums_of_costs():
    costs = {"false_positive": 2, "false_negative": 7}
    spec = resolve_spec(FEATURES | {"costs": costs})
    batch, one = rows(2500), Decisions(spec)
    scores = make_learner(spec).learn(batch).scores
    one.count(batch, _outcome(scores))
    positive, half = batch.labels > 0, scores >= 0
    p = 1 / (1 + np.exp(-scores))
    decided = (1 - p) * 2 <= p * 7

    def cost(label, last=2500):
        each = np.where(positive, 7 * ~label, 2 * label)
        return each[-last:].mean()

    for view, last in (("since_start", 2500), ("rolling", 1000)):
        constant = min(cost(np.full(2500, label), last) for label in (True, False))
        assert one.figures()["costs"][view] == pytest.approx(
            {
                "rows": last,
                "cost": cost(decided, last),
                "best_constant": constant,
                "most_probable": cost(half, last),
            }
        )
    assert one.figures()["costs"]["since_start"]["cost"] < cost(half)
    assert set(one.figures()) == {"costs"}


def test_figures_without_rows_are_null():
    figures = Decisions(resolve_spec({"costs": {"false_negative": 2}})).figures()["costs"]
    nothing = {"rows": 0, "cost": None, "best_constant": None, "most_probable": None}
    assert figures == {"since_start": nothing, "rolling": nothing}


def _outcome(scores: np.ndarray) -> Outcome:
    none = np.zeros(len(scores), np.bool_)
    return Outcome(scores, scores, none, none)


MATRIX = {"a": {"b": 5, "c": 0.5}, "c": {"a": 0, "b": 9}, "3": {"a": 2}, "rare": {"a": 4}}
NAMES = ("b", "a", 3, "c")


def full_matrix() -> np.ndarray:
    """(true, predicted)"""
    costs = 1.0 - np.eye(len(NAMES))
    for i, label in enumerate(NAMES):
        for j, predicted in enumerate(NAMES):
            costs[i, j] = MATRIX.get(str(label), {}).get(str(predicted), costs[i, j])
    return costs


def test_decided_class_has_the_least_expected_cost():
    draw = np.random.default_rng(8)
    probabilities = draw.dirichlet(np.full(len(NAMES), 0.4), 2000)
    n_classes = draw.integers(0, len(NAMES) + 1, 2000)
    costs, classes = ClassCosts(MATRIX), tuple(map(class_text, NAMES))
    decided = costs.decide(probabilities, n_classes, classes)
    for p, n, one in zip(probabilities, n_classes, decided.tolist(), strict=True):
        expected = p[:n] @ full_matrix()[:n, :n]
        assert one == (int(np.argmin(expected)) if n else -1)
    counts = np.array([30.0, 10.0, 5.0, 40.0])
    assert costs.least(counts, classes) == pytest.approx((counts @ full_matrix()).min())


def class_rows(n: int) -> Batch:
    draw = np.random.default_rng(3)
    x = draw.normal(size=(n, DIM))
    labels = np.argmax(np.hstack([x, np.zeros((n, 1))]) + draw.normal(size=(n, 4)), axis=1)
    plain = Batch.from_dense(x, labels.astype(np.float64))
    return replace(plain, classes=tuple(map(class_text, NAMES)))


SPEC = {"task": "multiclass", "costs": MATRIX, **FEATURES}


@pytest.mark.parametrize("algorithm", ["portfolio", "dual_ascent", "neighbours"])
def test_classes_are_decided_as_answers_decide_them(algorithm):
    spec = resolve_spec(SPEC | {"algorithm": algorithm})
    learner, single, batch = make_learner(spec), make_learner(spec), class_rows(1300)
    one, other = ClassDecisions(spec), ClassDecisions(spec)
    outcome = learner.learn(batch)
    one.count(batch, outcome)
    total, probable = 0.0, 0.0
    chosen = one._costs.decide_by_losses(outcome.class_losses, outcome.classes)
    matrix, names = full_matrix(), [class_text(name) for name in NAMES]
    for at in range(1300):
        row = batch[at : at + 1]
        answered = one.labels(single.predict_classes(row))[0]
        alone = single.learn(row)
        decided = chosen[at]
        assert answered == (None if decided < 0 else json_of(outcome.classes[decided]))
        other.count(row, alone)
        label = int(row.labels[0])
        for index, which in ((chosen[at], 0), (outcome.predicted[at], 1)):
            cost = 1.0 if index < 0 else matrix[label, names.index(outcome.classes[index])]
            total, probable = total + cost * (which == 0), probable + cost * (which == 1)
    for name, array in one.state().items():
        assert array.tobytes() == other.state()[name].tobytes(), name
    figures = one.figures()["costs"]
    counts = np.bincount(batch.labels.astype(int), minlength=4)
    assert figures["since_start"] == pytest.approx(
        {
            "rows": 1300,
            "cost": total / 1300,
            "best_constant": (counts @ matrix).min() / 1300,
            "most_probable": probable / 1300,
        }
    )
    assert figures["unseen_classes"] == ["rare"]
    assert figures["rolling"]["rows"] == 1000
    restored = ClassDecisions(spec)
    restored.restore(one.state())
    assert restored.figures() == one.figures()


def json_of(text: str):
    return next(name for name in NAMES if class_text(name) == text)


def test_late_rows_count_as_they_were_served():
    spec = resolve_spec(SPEC)
    learner, batch = make_learner(spec), class_rows(300)
    learner.learn(batch)
    one = ClassDecisions(spec)
    scored = learner.predict_classes(batch)
    numbers = one.served(scored)
    late = replace(batch, served=np.zeros(300))
    outcome = learner.learn(late)
    outcome.class_losses[:] = np.nan
    outcome.predicted[:] = -1  # what the present state thinks is not counted
    one.count(late, outcome, numbers)
    other = ClassDecisions(spec)
    losses = -np.log(scored.probabilities)
    other.count(batch, replace(outcome, class_losses=losses, predicted=scored.best))
    assert one.figures() == other.figures()


def test_costs_and_rates_that_cannot_be_are_refused(subtests):
    hinge = {"algorithm": "dual_ascent", "loss": "hinge", **FEATURES}
    classes = {"task": "multiclass"}
    for spec, pointer, reason in (
        ({"costs": {"false_positive": -1}}, "/costs/false_positive", "a number in [0, 1e12]"),
        ({"costs": {"false_positive": True}}, "/costs/false_positive", "a number in [0, 1e12]"),
        ({"costs": {"false_positive": 0, "false_negative": 0}}, "/costs", "above 0"),
        ({"costs": {"fraud": 2}}, "/costs/fraud", "takes false_positive, false_negative"),
        ({"costs": 25}, "/costs", "an object with false_positive"),
        ({"costs": {"false_positive": 1}, "task": "regression"}, "/costs", "decides nothing"),
        ({"costs": {"false_positive": 1}, **hinge}, "/costs", "the loss logistic"),
        (classes | {"costs": {"a": {"b": -1}}}, "/costs/a/b", "a number in [0, 1e12]"),
        (classes | {"costs": {"a/b": {"c": "x"}}}, "/costs/a~1b/c", "a number in [0, 1e12]"),
        (classes | {"costs": {"a": {"a": 1}}}, "/costs/a/a", "a right prediction costs nothing"),
        (classes | {"costs": {"a": {"b": 0}}}, "/costs", "above 0"),
        (classes | {"costs": {"a": 3}}, "/costs/a", '{"predicted class": cost}'),
        (classes | {"costs": {}}, "/costs", '{"true class": {"predicted class": cost}}'),
        ({"alert_rate": 0}, "/alert_rate", "above 0 and below 1"),
        ({"alert_rate": 1}, "/alert_rate", "above 0 and below 1"),
        ({"alert_rate": "5%"}, "/alert_rate", "above 0 and below 1"),
        ({"alert_rate": math.nan}, "/alert_rate", "above 0 and below 1"),
        ({"alert_rate": 0.1, "task": "regression"}, "/alert_rate", "unless the task is binary"),
        (classes | {"alert_rate": 0.1}, "/alert_rate", "unless the task is binary"),
    ):
        with subtests.test(str(spec)):
            with pytest.raises(InvalidSpec) as raised:
                resolve_spec(spec)
            assert raised.value.field == pointer
            assert reason in str(raised.value)
    both = {"costs": {"false_positive": -1}, "alert_rate": 2}
    with pytest.raises(InvalidSpec) as raised:
        resolve_spec(both)
    assert [one.field for one in raised.value.violations] == [
        "/costs/false_positive",
        "/alert_rate",
    ]


def test_resolved_fields_have_every_default():
    spec = resolve_spec({"costs": {"false_negative": 25}, "alert_rate": 0.001})
    assert spec["costs"] == {"false_positive": 1.0, "false_negative": 25.0}
    assert spec["alert_rate"] == 0.001
    assert resolve_spec(spec) == spec
    plain = resolve_spec({})
    assert "costs" not in plain and "alert_rate" not in plain
    assert resolve_spec({"costs": None, "alert_rate": None}) == plain
