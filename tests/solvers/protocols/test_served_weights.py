"""Views of served weights: equal to their dense definition, and of little memory if wide."""

import re
import tracemalloc

import numpy as np
import pytest

from dualstream.solvers import Batch, make_learner, resolve_spec
from dualstream.solvers.evaluation.guard.monitor import norm_of
from dualstream.solvers.export.linear import one_weight_a_feature
from dualstream.solvers.online.dual_ascent import learner as dual_ascent
from dualstream.solvers.protocols import served_weights
from dualstream.solvers.protocols.member_learner import member_learner
from dualstream.solvers.protocols.served_form import numbers_in, served_form
from dualstream.solvers.protocols.served_weights import survey_weights, weights_in_parts
from dualstream.solvers.rows.class_names import class_text
from dualstream.solvers.spec.algorithms import ALGORITHMS
from tests.solvers.specs import SPECS, stream

WIDEST = {"kind": "indexed", "dim": 2_147_483_646}
WIDE_BITS = 20
MIB = 1 << 20
CLASSES = ("a", "b", "c", "d")


def of_classes(batch):
    """The same rows with four classes."""
    labels = np.arange(len(batch), dtype=np.float64) % len(CLASSES)
    columns = batch.indptr, batch.indices, batch.values, labels, batch.weights
    return Batch(*columns, batch.dim, tuple(map(class_text, CLASSES)))


def learners():
    """Name and function that makes a learner with rows, for each specification and its classes."""
    for name, spec in SPECS.items():
        yield name, lambda spec=spec: learned(spec, stream(spec, 150))
        if spec.get("task", "binary") == "binary" and spec["algorithm"] != "portfolio":
            classes = {**spec, "task": "multiclass"}
            yield f"classes-{name}", lambda of=classes: learned(of, of_classes(stream(of, 150)))
            yield f"no-classes-{name}", lambda of=classes: make_learner(resolve_spec(of))


def learned(spec, batch):
    learner = make_learner(resolve_spec(spec))
    learner.learn(batch)
    return learner


LEARNERS = dict(learners())


def dense_of(scores):
    """The weights of some scores as rows of a matrix, and their intercepts."""
    rows, intercepts = [], []
    for served in scores:
        row, before = np.zeros(served.dim), -1
        for positions, weights in served.blocks():
            assert (
                positions[0] > before and np.all(np.diff(positions) > 0) and np.all(weights != 0.0)
            )
            row[positions], before = weights, positions[-1]
        rows.append(row)
        intercepts.append(served.intercept)
    return rows, intercepts


def heaviest_of(weights, top):
    """Definition: stable order of all weights by magnitude, without those that do not count."""
    order = np.argsort(-np.abs(weights), axis=None, kind="stable")[:top]
    results = [(*divmod(at, weights.shape[1]), weights.flat[at]) for at in order.tolist()]
    return [one for one in results if abs(one[2]) > 1e-12 * np.abs(weights[one[0]]).max()]


def nonzeros_of(weights):
    sizes = np.abs(weights)
    return sum(int(np.count_nonzero(row > 1e-12 * row.max(initial=0.0))) for row in sizes)


def norm_of_dense(pairs):
    total, size = 0.0, 0
    for weights, intercepts in pairs:
        for numbers in (weights, intercepts):
            part = 0.0
            for number in np.ravel(numbers).tolist():
                part += min(abs(number), 1e100) ** 2
            total += part
            size += np.size(numbers)
    return np.sqrt(total), size


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(served_weights, "BLOCK", 5)


def test_views_equal_their_definition_on_dense_arrays(small_blocks, subtests):
    for name in LEARNERS:
        with subtests.test(name=name):
            learner = LEARNERS[name]()
            weights = np.atleast_2d(learner.weights)
            intercepts = getattr(learner, "intercepts", learner.intercept)
            rows, mine = dense_of(learner.served_weights())
            assert np.array_equal(np.array(rows).reshape(weights.shape), weights)
            assert mine == np.ravel(intercepts).tolist()
            assert learner.nonzeros == nonzeros_of(weights)
            for top in (1, 3, 7, 10_000):
                survey = survey_weights(learner.served_weights(), top)
                results = [(one.score, one.place, one.weight) for one in survey.heaviest]
                assert results == heaviest_of(weights, top)
                assert survey.nonzeros == learner.nonzeros
            members = member_learner(learner)
            pairs = [(weights, intercepts)]
            if members is not None:
                names = [view.name for view in members.members()]
                pairs = [members.member_weights(name) for name in names]
                assert any(np.any(weights) for weights, _ in pairs)
            assert norm_of(learner) == norm_of_dense(pairs)


def test_the_intercept_is_that_of_all_served_weights():
    for name, make in LEARNERS.items():
        learner = make()
        whole = getattr(learner, "_served", None) or getattr(learner, "_weights", None)
        if whole is not None and isinstance(result := whole(), np.ndarray):
            assert learner.intercept == result[-1] + getattr(learner, "_odds", 0.0), name
            assert np.array_equal(learner.weights, result[:-1]), name


@pytest.mark.parametrize("members", ["twelve", "papers"])
def test_weights_of_fused_members_are_those_of_the_state(members):
    spec = resolve_spec(SPECS[f"portfolio-{members}"])
    learner = learned(spec, stream(spec, 150))
    state = learner.state()
    positions = state["crew.fused.touched"][1:]
    index = 0
    for view in learner.members():
        if view.spec.get("kind") in (None, "prior"):
            continue
        column = state["crew.fused.weights"][1:, index]
        index += 1
        weights, _ = learner.member_weights(view.name)
        expected = np.zeros(len(weights))
        expected[positions] = column
        if view.spec.get("schedule") == "inverse_sqrt":
            expected *= weights[positions[0]] / column[0]
            assert np.allclose(weights, expected, rtol=1e-14, atol=0.0)
        else:
            assert np.array_equal(weights, expected)


def test_as_many_weights_are_listed_as_counted():
    """Weights of `entropy` are exponentials: never 0, but some below 1e-12 of the largest."""
    weights = np.exp(-np.arange(40.0))[None]
    survey = survey_weights([weights_in_parts(40, 0.0, lambda a, b: weights[0, a:b])], 100)
    assert survey.nonzeros == len(survey.heaviest) == 28


def test_ties_and_tiny_weights():
    weights = np.array([[2.0, -3.0, 3.0, 0.0], [3.0, 1e-13, -2.0, -3.0]])

    def scores():
        return [weights_in_parts(4, 0.5, lambda a, b, row=row: row[a:b]) for row in weights]

    for top in range(1, 9):
        survey = survey_weights(scores(), top)
        results = [(one.score, one.place, one.weight) for one in survey.heaviest]
        assert results == heaviest_of(weights, top)
        assert survey.nonzeros == 6
    assert survey_weights([], 3).heaviest == () and survey_weights([], 3).dim is None


def wide_specs():
    for name in ALGORITHMS:
        spec = next(
            spec
            for mine, spec in SPECS.items()
            if spec["algorithm"] == name and not re.search("nonlinear|pairs", mine)
        )
        spec = {field: value for field, value in spec.items() if field != "basis"}
        if name == "semiparametric":
            spec["basis"] = ["constant", {"kind": "linear", "feature": 3}]
        yield name, spec


WIDE = dict(wide_specs())


def peak_of(read):
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def read_all(learner):
    """Everything that an answer, a scrape or the guard reads of the weights."""
    survey_weights(learner.served_weights(), 20)
    assert learner.nonzeros >= 0
    assert np.isfinite(learner.intercept)
    norm_of(learner)
    if hasattr(learner, "support"):
        learner.support()


@pytest.mark.parametrize("name", WIDE)
def test_views_of_wide_models_need_memory_for_a_block(name):
    spec = {**WIDE[name], "features": {"kind": "hashed", "bits": WIDE_BITS}}
    if name == "semiparametric":
        spec["features"] = {"kind": "indexed", "dim": 1 << WIDE_BITS}
    learner = learned(spec, Batch.from_csr([0, 2], [5, 900_000], [1.0, 2.0], [1.0], dim=1 << 20))
    assert peak_of(lambda: read_all(learner)) < 4 * MIB  # a dense array has 8


@pytest.mark.parametrize("name", ["portfolio", "semiparametric"])
def test_views_of_the_widest_models_need_memory_for_what_was_touched(name):
    spec = {**WIDE[name], "features": WIDEST, "guard": "warn"}
    dim = WIDEST["dim"]
    batch = Batch.from_csr([0, 2, 3], [5, dim - 1, 7], [1.0, 2.0, 1.0], [1.0, -1.0], dim=dim)
    learner = learned(spec, batch)

    def read():
        read_all(learner)
        learner.state()
        if name == "portfolio":
            assert numbers_in(served_form(learner)) > 0
            for view in learner.members():
                learner.member_certificate(view.name)
                if view.spec["kind"] != "prior":
                    learner.member_form(view.name)

    assert peak_of(read) < MIB


GENERAL = {
    f"{name}-{average}": {**spec, "average": average}
    for name, spec in SPECS.items()
    if spec.get("regularizer", "l2") != "l2" and spec["algorithm"] == "dual_ascent"
    for average in (None, {"kappa": 0.9})
}


@pytest.mark.parametrize("name", GENERAL)
def test_certificates_of_wide_models_need_memory_for_a_block(name):
    spec = {**GENERAL[name], "features": {"kind": "hashed", "bits": WIDE_BITS}}
    learner = learned(spec, Batch.from_csr([0, 2], [5, 900_000], [1.0, 2.0], [1.0], dim=1 << 20))
    assert peak_of(learner.certificate) < 2 * MIB  # a dense array has 8


@pytest.mark.parametrize("name", GENERAL)
def test_blocks_do_not_change_a_certificate(name, monkeypatch):
    spec = GENERAL[name]
    learner = learned(spec, stream(spec, 150))
    whole = learner.certificate()
    assert whole.gap > 0.0
    monkeypatch.setattr(dual_ascent, "BLOCK", 5)
    assert learner.certificate() == whole


def test_scaling_by_counts_is_exported_without_an_array_of_the_width():
    scaling = {"kind": "balanced", "moments": False}
    member = {"kind": "dual_ascent", "name": "counts", "scaling": scaling, "norm": "none"}
    spec = {"algorithm": "portfolio", "features": WIDEST, "members": [member, {"kind": "prior"}]}
    dim = WIDEST["dim"]
    learner = learned(spec, Batch.from_csr([0, 2], [5, dim - 1], [1.0, 2.0], [1.0], dim=dim))
    form = learner.member_form("counts")
    (row,) = one_weight_a_feature(form)
    (stage,) = form.stages
    counts = dict(zip(stage.columns.tolist(), stage.counts.tolist(), strict=True))
    (score,) = form.scores
    factors = [
        ((counts[position] + 1.0) / (stage.rows + 1.0)) ** -stage.power for position in counts
    ]
    assert row.weights.tolist() == (score.weights * np.array(factors)).tolist()
    assert peak_of(lambda: one_weight_a_feature(form)) < MIB
