"""One-vs-rest against binary learners that knew their class from the start."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dualstream.solvers import Batch, InvalidRow, Outcome, dump, load, make_learner, resolve_spec
from dualstream.solvers.evaluation.make_progressive import make_progressive
from dualstream.solvers.features.build import make_staged
from dualstream.solvers.online import class_model
from dualstream.solvers.online.class_choice import LOG_LOSS_CAP
from dualstream.solvers.online.dual_ascent.learner import DualAscent
from dualstream.solvers.online.multiclass import make_multiclass
from dualstream.solvers.rows.class_names import class_indices, class_label, class_text
from tests.solvers.support import as_bytes, class_rows, mixed_rows, outcome_bytes

SPECS = {
    "plain": {},
    "hinge": {"loss": "hinge"},
    "staged": {"scaling": "balanced", "norm": "running"},
    "portfolio": {
        "algorithm": "portfolio",
        "members": [
            {"kind": "prior"},
            {"kind": "dual_ascent", "strength": 3},
            {"kind": "adagrad", "norm": "row"},
            {"algorithm": "sgd"},
        ],
        "retain": 20,
    },
}
SHARED = {
    "neighbours": {"algorithm": "neighbours", "window": 40, "neighbours": 5},
    "boosted": {"algorithm": "boosted", "window": 64, "trees": 3, "renewal": 4, "leaves": 5},
    "net": {"algorithm": "net", "units": [4, 3]},
    "shared members": {
        "algorithm": "portfolio",
        "members": [
            {"kind": "prior"},
            {"kind": "diagonal_newton"},
            {"algorithm": "net", "units": [2, 2]},
            {"algorithm": "boosted", "window": 64, "trees": 2, "renewal": 4},
            {"algorithm": "splines"},
            {"algorithm": "neighbours", "window": 40},
            {"kind": "stack"},
        ],
        "retain": 20,
    },
}
"""Models with learners that score all classes at once."""
ALL = SPECS | SHARED


def spec_of(name, **fields):
    spec = {"algorithm": "dual_ascent", "task": "multiclass"}
    return spec | {"features": {"kind": "indexed", "dim": 8}} | ALL[name] | fields


def texts(batch):
    return [batch.classes[int(label)] for label in batch.labels]


@pytest.mark.parametrize("name", SPECS)
def test_each_class_has_the_learner_that_knew_it_from_the_start(name):
    batch, learner = class_rows(), make_learner(spec_of(name))
    outcome = learner.learn(batch)
    assert learner.classes == outcome.classes == tuple(dict.fromkeys(texts(batch)))
    scores, losses = [], np.zeros(len(batch))
    for k, text in enumerate(learner.classes):
        binary = make_learner(spec_of(name) | {"task": "binary"})
        labels = np.where(np.array(texts(batch)) == text, 1.0, -1.0)
        alone = binary.learn(batch.with_labels(labels))
        assert learner.weights[k].tobytes() == binary.weights.tobytes()
        assert learner.intercepts[k] == binary.intercept
        scores.append(alone.scores)
        met = texts(batch).index(text)
        losses[met:] += alone.losses[met:]
    assert outcome.losses.tobytes() == losses.tobytes()
    first = [texts(batch).index(text) for text in learner.classes]
    for i in range(len(batch)):
        previous = [score[i] for score, met in zip(scores, first, strict=True) if met < i]
        assert outcome.predicted[i] == (int(np.argmax(previous)) if previous else -1)
        assert outcome.scores[i] == (max(previous) if previous else 0.0)
        mine = learner.classes.index(texts(batch)[i])
        if name == "hinge":
            assert outcome.log_losses is None
        elif mine < len(previous):
            p = 1 / (1 + np.exp(-np.array(previous)))
            assert outcome.log_losses[i] == pytest.approx(-np.log(p[mine] / p.sum()), abs=1e-12)
        else:
            assert outcome.log_losses[i] == LOG_LOSS_CAP


@pytest.mark.parametrize("name", ALL)
def test_a_batch_is_its_rows_one_by_one(name):
    batch = class_rows()
    batch.weights[70:76] = 0.0
    whole, single = make_learner(spec_of(name)), make_learner(spec_of(name))
    outcome = whole.learn(batch)
    for i in range(len(batch)):
        before = as_bytes(single.state())
        got = single.predict_classes(batch[i : i + 1])
        assert as_bytes(single.state()) == before
        one = single.learn(batch[i : i + 1])
        assert outcome_bytes(one) == outcome_bytes(outcome[i : i + 1])
        assert got.best.tobytes() == one.predicted.tobytes()
        assert single.predict(batch[i : i + 1]).shape == (1,)
        if got.classes:
            assert got.scores[0, got.best[0]] == one.scores[0]
    assert as_bytes(whole.state()) == as_bytes(single.state())
    assert whole.samples == len(batch)


@pytest.mark.parametrize("name", ALL)
def test_restored_learner_continues(name):
    batch = class_rows()
    learner, other = make_learner(spec_of(name)), make_learner(spec_of(name))
    learner.learn(batch[:80])
    other.learn(class_rows(seed=3)[:9])
    state, _ = load(dump(learner.state(), {}))
    other.restore(state)
    assert other.classes == learner.classes
    assert outcome_bytes(other.learn(batch[80:])) == outcome_bytes(learner.learn(batch[80:]))
    assert as_bytes(learner.state()) == as_bytes(other.state())


@pytest.mark.parametrize("name", ["plain", *SHARED])
def test_how_batches_number_their_classes_leaves_no_trace(name):
    batch = class_rows()
    turned = batch.with_labels(3.0 - batch.labels, batch.classes[::-1])
    learner, other = make_learner(spec_of(name)), make_learner(spec_of(name))
    joined = Batch.concat([batch[:50], turned[50:90], batch[90:]])
    assert outcome_bytes(learner.learn(batch)) == outcome_bytes(other.learn(joined))
    assert as_bytes(learner.state()) == as_bytes(other.state())


class Moody:
    """A learner that rejects a positive row of weight 7, and a negative one of weight 11."""

    def __init__(self, spec):
        self._learner = DualAscent(spec)

    def __getattr__(self, name):
        return getattr(self._learner, name)

    def learn(self, batch):
        refused = np.where(batch.labels > 0, 7.0, 11.0)
        good = batch.weights != refused
        learned = self._learner.learn(batch.take(good))
        n = len(batch)
        scores, losses = np.full(n, np.nan), np.full(n, np.nan)
        updated = np.zeros(n, np.bool_)
        scores[good], losses[good], updated[good] = learned.scores, learned.losses, learned.updated
        return Outcome(scores, losses, updated, ~good)


@pytest.mark.parametrize("is_staged", [False, True])
@pytest.mark.parametrize("cuts", [[], [1, 2, 30, 31, 32, 70], list(range(1, 150))])
def test_a_row_that_one_binary_learner_rejects_leaves_no_trace_in_any(cuts, is_staged):
    batch = class_rows()
    positive, negative = [0, 30, 31, 75, 145], [33, 99, 149]
    batch.weights[positive], batch.weights[negative] = 7.0, 11.0
    spec = resolve_spec(spec_of("staged" if is_staged else "plain"))

    def make(resolved):
        return make_multiclass(resolved, Moody)

    learner, other = make(spec), make_learner(spec)
    if is_staged:
        learner = make_staged(spec, make)
    outcomes = []
    for begin, end in zip([0, *cuts], [*cuts, 150], strict=True):
        outcomes.append(learner.learn(batch[begin:end]))
    outcome = Outcome.joined(outcomes)
    bad = sorted(positive + negative)
    assert np.flatnonzero(outcome.rejected).tolist() == bad
    good = np.delete(np.arange(150), bad)
    expected = other.learn(batch.take(good))
    assert outcome.scores[good].tobytes() == expected.scores.tobytes()
    assert outcome.predicted[good].tobytes() == expected.predicted.tobytes()
    assert (outcome.predicted[bad] == -1).all() and np.isnan(outcome.losses[bad]).all()
    assert outcome.classes == expected.classes and '"rare"' not in outcome.classes
    assert as_bytes(learner.state()) == as_bytes(other.state())


@pytest.mark.parametrize("name", ["staged", *SHARED])
def test_a_class_too_many_is_rejected(name, monkeypatch):
    monkeypatch.setattr(class_model, "MAX_CLASSES", 2)
    batch = class_rows()
    learner, other = make_learner(spec_of(name)), make_learner(spec_of(name))
    outcome = learner.learn(batch)
    previous = [text in learner.classes for text in texts(batch)]
    assert len(learner.classes) == 2 and not all(previous)
    assert outcome.rejected.tolist() == [not k for k in previous]
    other.learn(batch.take(np.array(previous)))
    assert as_bytes(learner.state()) == as_bytes(other.state())


@pytest.mark.parametrize("name", ["plain", *SHARED])
def test_a_row_of_weight_0_does_not_bring_its_class(name):
    batch, weightless = class_rows(), class_rows()
    weightless.weights[145] = 0.0
    learner, other = make_learner(spec_of(name)), make_learner(spec_of(name))
    expected = learner.learn(batch)
    outcome = other.learn(weightless)
    assert batch.classes[int(batch.labels[145])] == '"rare"'
    assert '"rare"' in learner.classes and '"rare"' not in other.classes
    assert outcome_bytes(outcome[145:146])[:1] == outcome_bytes(expected[145:146])[:1]
    # The classes are summed in another order.
    assert outcome.losses[145] == pytest.approx(expected.losses[145], rel=1e-14)
    assert not outcome.updated[145] and not outcome.rejected[145]
    assert outcome.log_losses[145] == LOG_LOSS_CAP


@pytest.mark.parametrize("name", ["staged", *SHARED])
def test_rows_without_a_class_are_refused_before_any_is_learned(name):
    learner = make_learner(spec_of(name))
    learner.learn(class_rows()[:20])
    before = as_bytes(learner.state())
    batch = class_rows()
    batch.labels[17] = np.nan
    for wrong, row in ((batch, 17), (mixed_rows(5), 0)):
        with pytest.raises(InvalidRow, match="must be a class") as refused:
            learner.learn(wrong)
        assert refused.value.row == row
    assert as_bytes(learner.state()) == before


@pytest.mark.parametrize("name", ["plain", *SHARED])
def test_answers_before_any_class_and_far_beyond(name):
    learner = make_learner(spec_of(name))
    got = learner.predict_classes(mixed_rows(3))
    assert got.best.tolist() == [-1, -1, -1] and got.scores.shape == (3, 0)
    assert learner.predict(mixed_rows(3)).tolist() == [0, 0, 0]
    if name == "plain":
        assert learner.certificate().gap == 0.0
    learner.learn(class_rows())
    got = learner.predict_classes(mixed_rows(9, seed=5))
    assert got.probabilities.sum(axis=1) == pytest.approx(np.ones(9), abs=1e-12)
    assert (got.probabilities.argmax(axis=1) == got.best).all()
    far = learner.class_probabilities(np.array([[-1e4, -1e4 - 1.0, -2e4, -3e4]]))
    assert far[0, :2] == pytest.approx(1 / (1 + np.exp([-1.0, 1.0])), rel=1e-9)
    one = learner.certificate()
    if name != "plain":
        assert one is None
        return
    assert one.gap > 0 and one.primal == pytest.approx(one.dual + one.gap)


@pytest.mark.parametrize(
    ("label", "text"),
    [(1, "1"), (1.0, "1"), (-0.0, "0"), (True, "true"), ("1", '"1"'), (2.5, "2.5"), ("ä", '"ä"')],
)
def test_a_class_is_its_json_text(label, text):
    assert class_text(label) == text
    assert class_label(text) == label


@given(st.lists(st.sampled_from(["a", "b", "c"]), max_size=9))
def test_labels_are_places_among_the_classes(names):
    labels, classes = class_indices(names)
    assert [classes[int(k)] for k in labels] == names
    assert list(classes) == list(dict.fromkeys(names))


def test_metrics_count_classes_and_baselines():
    batch, spec = class_rows(), resolve_spec(spec_of("plain"))
    learner, progress, single = make_learner(spec), make_progressive(spec), make_progressive(spec)
    outcome = learner.learn(batch)
    progress.count(batch, outcome)
    for i in range(len(batch)):
        single.count(batch[i : i + 1], outcome[i : i + 1], i + 1)
    assert as_bytes(progress.state()) == as_bytes(single.state())
    mistakes, frequent, last = 0, 0, 0
    seen = {}
    mine = texts(batch)
    for i, text in enumerate(mine):
        previous = outcome.predicted[i] >= 0
        mistakes += not previous or outcome.classes[outcome.predicted[i]] != text
        frequent += not seen or max(seen, key=seen.get) != text
        last += i == 0 or mine[i - 1] != text
        seen[text] = seen.get(text, 0) + 1
    view = progress.summary()["since_start"]
    assert view["error_rate"] == pytest.approx(mistakes / 150)
    assert view["loss"] == pytest.approx(outcome.losses.mean())
    assert view["log_loss"] == pytest.approx(outcome.log_losses.mean())
    assert view["baselines"]["most_frequent"]["error_rate"] == pytest.approx(frequent / 150)
    assert view["baselines"]["last_label"]["error_rate"] == pytest.approx(last / 150)
    other = make_progressive(spec)
    other.restore(load(dump(progress.state(), {}))[0])
    other.count(batch, outcome)
    progress.count(batch, outcome)
    assert as_bytes(progress.state()) == as_bytes(other.state())
