"""Random Fourier and Nystroem features against their definitions in NumPy."""

import json

import numpy as np
import pytest

from dualstream.solvers import Batch, make_learner, resolve_spec
from dualstream.solvers.features.fourier import Fourier, draw_frequencies
from dualstream.solvers.features.nystroem import Nystroem
from tests.solvers.conftest import GOLDEN
from tests.solvers.support import as_bytes, class_rows, dense, mixed_rows, outcome_bytes

RFF = json.loads((GOLDEN / "svm.json").read_text())["rff_mean_abs_err"]
GAMMA = 0.1
KNOWN_NU = [1.1186632301507777, -0.8430660137721919, 0.2682506305252265, 1.7080561124924014]
KNOWN_BETA = [1.8860003910648933, 5.488698173149897]


def rbf(x, z):
    return np.exp(-GAMMA * ((x[:, None, :] - z[None, :, :]) ** 2).sum(axis=2))


def test_fourier_features_are_the_cosines_of_the_definition():
    stage, batch = Fourier(8, 30, GAMMA, 5), mixed_rows(40)
    state = stage.state()
    expected = np.sqrt(2 / 30) * np.cos(dense(batch) @ state["nu"] + state["beta"])
    assert dense(stage.learn(batch)) == pytest.approx(expected, abs=1e-12)
    assert dense(stage.peek(batch[:0])).shape == (0, 30)


def test_fourier_features_approximate_the_kernel():
    batch = mixed_rows(40)
    phi = dense(Fourier(8, 20_000, GAMMA, 0).peek(batch))
    assert phi @ phi.T == pytest.approx(rbf(dense(batch), dense(batch)), abs=0.05)


def test_frequencies_are_normal_and_the_same_for_ever():
    nu, beta = draw_frequencies(50, 2000, GAMMA, 1)
    assert nu.mean() == pytest.approx(0.0, abs=0.01)
    assert nu.var() == pytest.approx(2 * GAMMA, rel=0.02)
    assert ((nu / np.sqrt(2 * GAMMA)) ** 4).mean() == pytest.approx(3.0, rel=0.05)
    assert beta.min() >= 0 and beta.max() < 2 * np.pi and beta.mean() == pytest.approx(np.pi, 0.05)
    nu, beta = draw_frequencies(2, 2, 0.5, 7)
    assert nu.ravel() == pytest.approx(KNOWN_NU, rel=1e-14)
    assert beta == pytest.approx(KNOWN_BETA, rel=1e-14)
    assert not np.allclose(nu, draw_frequencies(2, 2, 0.5, 8)[0])


def with_copies(batch):
    """Rows with duplicates, one of zeros, and one almost equal to another."""
    third = batch[3:4]
    near = third.with_rows(third.indptr, third.indices, third.values * (1 + 1e-9), 8)
    zeros = Batch.from_dense(np.zeros((2, 8)), [1, -1])
    return Batch.concat([batch[:6], batch[2:5], zeros, near, batch[6:]])


def test_nystroem_features_give_the_kernel_of_the_landmarks():
    batch = with_copies(mixed_rows(60))
    stage = Nystroem(8, 12, GAMMA)
    marks = batch[:12]
    stage.set_landmarks(marks)
    assert stage.rank == 7  # 12 less three copies, the second zeros, and one near copy
    phi, x, z = dense(stage.peek(batch)), dense(batch), dense(marks)
    expected = rbf(x, z) @ np.linalg.pinv(rbf(z, z), rcond=1e-12, hermitian=True) @ rbf(z, x)
    assert phi @ phi.T == pytest.approx(expected, abs=1e-6)
    assert phi[:12] @ phi[:12].T == pytest.approx(rbf(z, z), abs=1e-9)
    assert (phi[:, stage.rank :] == 0).all()


def test_rows_wait_for_the_landmarks_and_are_learned_in_order():
    spec = {"features": {"kind": "indexed", "dim": 8}, "rho": 0.01}
    mapped = spec | {"map": {"kind": "nystroem", "components": 10, "gamma": GAMMA}}
    batch = with_copies(mixed_rows(60))
    batch.weights[20] = 0.0
    learner = make_learner(mapped)
    outcome = learner.learn(batch)
    distinct = list(dict.fromkeys(map(bytes, dense(batch))))
    complete = [bytes(row) for row in dense(batch)].index(distinct[9])
    assert (outcome.scores[: complete + 1] == 0).all() and not outcome.updated[: complete + 1].any()
    assert (outcome.losses[: complete + 1] == np.log(2)).all()
    stage = Nystroem(8, 10, GAMMA)
    stage.set_landmarks(Batch.from_dense(np.array([np.frombuffer(row) for row in distinct[:10]])))
    plain = make_learner(spec | {"features": {"kind": "indexed", "dim": 10}})
    expected = plain.learn(stage.peek(batch))
    assert outcome.scores[complete + 1 :] == pytest.approx(
        expected.scores[complete + 1 :], abs=1e-12
    )
    assert learner.weights == pytest.approx(plain.weights, abs=1e-12)
    assert learner.samples == len(batch) == plain.samples


def test_a_stream_of_few_different_rows_gets_its_map_all_the_same():
    spec = {"features": {"kind": "indexed", "dim": 8}, "map": {"kind": "nystroem", "components": 4}}
    learner, batch = make_learner(spec), mixed_rows(2)
    many = Batch.concat([batch] * 30)
    scores = learner.learn(many).scores
    assert (scores[:40] == 0).all() and (scores[40:] != 0).all()
    assert learner.samples == 60
    assert np.count_nonzero(learner.weights) == 2


@pytest.mark.parametrize("kind", ["fourier", "nystroem"])
def test_classes_share_one_map(kind):
    spec = resolve_spec(
        {
            "task": "multiclass",
            "scaling": "balanced",
            "norm": "running",
            "features": {"kind": "indexed", "dim": 8},
            "map": {"kind": kind, "components": 16, "gamma": GAMMA},
        }
    )
    batch = class_rows()
    turned = batch.with_labels(3.0 - batch.labels, batch.classes[::-1])
    whole, single, other = (make_learner(spec) for _ in range(3))
    outcome = whole.learn(batch)
    for i in range(len(batch)):
        got = single.predict_classes(batch[i : i + 1])
        one = single.learn((turned if i % 2 else batch)[i : i + 1])
        assert outcome_bytes(one) == outcome_bytes(outcome[i : i + 1])
        assert got.best[0] == one.predicted[0]
        if i in (7, 90):
            other.restore(single.state())
            assert as_bytes(other.state()) == as_bytes(single.state())
    assert as_bytes(whole.state()) == as_bytes(single.state())
    assert outcome_bytes(other.learn(batch[91:])) == outcome_bytes(outcome[91:])
    assert whole.classes == single.classes and whole.weights.shape == (4, 16)


@pytest.mark.parametrize("components, mean_error", RFF["values"])
def test_fourier_features_are_as_near_the_kernel_as_the_golden_ones(components, mean_error):
    text = (GOLDEN / "a9a_500.libsvm").read_bytes()
    batch = Batch.from_libsvm(text, 123).batch[: RFF["rows"]]
    x, phi = dense(batch), dense(Fourier(123, components, RFF["gamma"], 0).peek(batch))
    kernel = np.exp(-RFF["gamma"] * ((x[:, None, :] - x[None, :, :]) ** 2).sum(axis=2))
    assert np.abs(phi @ phi.T - kernel).mean() == pytest.approx(mean_error, rel=0.25)


def test_nystroem_weights_are_a_function_of_the_landmarks_kernel():
    """f(x) = k_S(x) @ alpha(gamma): a model of features, expressed by the kernel of its
    landmarks.
    """
    stage, marks, others = Nystroem(8, 12, GAMMA), mixed_rows(12), mixed_rows(60)[12:]
    stage.set_landmarks(marks)
    gamma = np.random.default_rng(0).normal(size=12)
    gamma[stage.rank :] = 0.0
    alpha, *_ = np.linalg.lstsq(dense(stage.peek(marks)).T, gamma, rcond=None)
    by_kernel = rbf(dense(others), dense(marks)) @ alpha
    assert by_kernel == pytest.approx(dense(stage.peek(others)) @ gamma, abs=1e-9)
