"""ASSET after maps on ADULT: the error bands of the golden file.

Runs that take minutes are sampled. DUALSTREAM_ADULT_SPLITS=5 learns five splits of the thesis's
data with both maps, both steps and its own averaging rule, and the 8,000 rows for as many epochs as
the golden run; `-o log_cli=true --log-cli-level=INFO` shows the errors.
"""

import json
import logging
import os
from collections.abc import Iterator

import numpy as np
import pytest

from dualstream.solvers import Batch, make_learner
from dualstream.solvers.features.fourier import Fourier
from dualstream.solvers.features.nystroem import Nystroem
from tests.solvers.conftest import GOLDEN
from tests.solvers.online.asset_support import adult_rows, needs_data, spec_of
from tests.solvers.support import dense

BANDS = json.loads((GOLDEN / "svm.json").read_text())["asset_bands"]
THESIS, OFFICIAL, FEW = (
    BANDS[name] for name in ("adult_thesis_setup", "a9a_official_split", "a9a_8000_rows")
)
SPLITS = int(os.environ.get("DUALSTREAM_ADULT_SPLITS", "1"))
TRAIN, EPOCHS, COMPONENTS, GAMMA = 32561, 200, 512, 0.001
STEPS = {"ASSET": "sqrt", "ASSET*": "strongly_convex"}
LOG = logging.getLogger(__name__)

pytestmark = [needs_data, pytest.mark.data, pytest.mark.slow]


@pytest.fixture(scope="module")
def a9a():
    return adult_rows("a9a")


@pytest.fixture(scope="module")
def a9a_test():
    return adult_rows("a9a.t")


class Mapped:
    """Rows after a map, to be learned many times."""

    def __init__(self, stage: Fourier | Nystroem, rows: Batch) -> None:
        cuts = range(0, len(rows), 4096)
        self.x = np.concatenate([dense(stage.peek(rows[cut : cut + 4096])) for cut in cuts])
        self.labels = rows.labels
        self._form = Batch.from_dense(np.ones((512, COMPONENTS)), np.ones(512))

    def keep(self, rows: int) -> None:
        """Drop all rows but the first ones."""
        self.x, self.labels = self.x[:rows], self.labels[:rows]

    def epoch(self, draw: np.random.Generator) -> Iterator[Batch]:
        """All rows in a new random order.

        In parts that fit the cache: all at once took five times as long. Every number is an entry,
        including zeros: `take`, which reads the length of each row, took four times as long.
        """
        for positions in np.split(draw.permutation(len(self.x)), range(512, len(self.x), 512)):
            form = self._form[: len(positions)].with_labels(self.labels[positions])
            values = self.x[positions].ravel()
            yield form.with_rows(form.indptr, form.indices, values, COMPONENTS)

    def objective(self, weights, lam):
        losses = np.maximum(0.0, 1.0 - self.labels * (self.x @ weights))
        return 0.5 * lam * weights @ weights + losses.mean()

    def error(self, weights):
        return float(np.mean(np.sign(self.x @ weights) != self.labels))


def asset(step, rows, first):
    """1 / (lambda m) = 1000 and no intercept, as the thesis has it for ADULT."""
    fields = {"lambda": 1e-3 / rows, "average": {"from": first}}
    return make_learner(spec_of(COMPONENTS, **fields, step=step, intercept=False))


def nystroem(rows, draw):
    stage = Nystroem(123, COMPONENTS, GAMMA)
    stage.set_landmarks(rows.take(draw.permutation(len(rows))[:COMPONENTS]))
    return stage


def learn(learners, rows, epochs, draw):
    for _ in range(epochs):
        for part in rows.epoch(draw):
            for learner in learners:
                learner.learn(part)


def online_errors(rows, test, draw):
    """Test errors in percent by Fourier features: of one pass, and after all epochs.

    The epochs are left out of a single split: the official one below has as many and tighter bands.
    """
    stage = Fourier(123, COMPONENTS, GAMMA, 0)
    train, test = Mapped(stage, rows), Mapped(stage, test)
    whole = {f"{name}_on": asset(step, TRAIN, EPOCHS * TRAIN // 2) for name, step in STEPS.items()}
    if SPLITS == 1:
        whole = {}
    # Not ASSET*: at this lambda its steps leave the ball |g| <= R during the whole pass, and the
    # definition itself gives 21 %. Without the ball it is 15.7 %, like the golden figure; so it is
    # at lambda 1e-5 with the ball, and the figure may be of either.
    once = {"ASSET_on one pass, last half": asset("sqrt", TRAIN, TRAIN // 2)}
    learn((whole | once).values(), train, 1, draw)
    if whole:
        learn(whole.values(), train, EPOCHS - 1, draw)
    return {name: 100 * test.error(one.weights) for name, one in (whole | once).items()}


def landmark_errors(rows, test, draw):
    """Test errors in percent by Nystroem features, after all epochs."""
    stage = nystroem(rows, draw)
    train, test = Mapped(stage, rows), Mapped(stage, test)
    steps = EPOCHS * TRAIN
    learners = {name: asset(step, TRAIN, steps // 2) for name, step in STEPS.items()}
    learners["ASSET last-100 average (thesis rule)"] = asset("sqrt", TRAIN, steps - 100)
    learn(learners.values(), train, EPOCHS, draw)
    return {name: 100 * test.error(one.weights) for name, one in learners.items()}


def test_errors_of_the_thesis_are_in_their_bands(a9a, a9a_test):
    """One split and one pass, or all there is; the splits are the golden ones."""
    pool, splits = Batch.concat([a9a, a9a_test]), []
    for split in range(SPLITS):
        draw = np.random.default_rng(split)
        order = draw.permutation(len(pool))
        rows, test = pool.take(order[:TRAIN]), pool.take(order[TRAIN + 8140 :])
        splits.append(online_errors(rows, test, draw))
        if SPLITS > 1:
            splits[-1] |= landmark_errors(rows, test, draw)
        LOG.info("split %d: %s", split, splits[-1])
    for name in splits[0]:
        errors = [result[name] for result in splits]
        LOG.info("%s: %.3f +- %.3f %s", name, np.mean(errors), np.std(errors), np.round(errors, 2))
        least, most = band_of(name)
        assert least <= np.mean(errors) <= most, name


def band_of(name):
    """What is accepted; where nothing is said, the golden mean less or more its deviation."""
    accepted = THESIS["accept_percent"]
    if "one pass" in name:
        return accepted["one_pass"]
    mean, deviation = THESIS["ours_percent_mean_std"][name]
    return accepted.get(name, (mean - deviation, mean + deviation))


def test_error_with_fourier_features_is_in_the_band(a9a, a9a_test):
    """30 of the golden 100 epochs, or all of them."""
    stage, epochs = Fourier(123, COMPONENTS, GAMMA, 0), 30 if SPLITS == 1 else 100
    train = Mapped(stage, a9a)
    learner = asset("sqrt", TRAIN, epochs // 2 * TRAIN)
    learn([learner], train, epochs, np.random.default_rng(0))
    least, most = OFFICIAL["accept"]
    error = Mapped(stage, a9a_test).error(learner.weights)
    assert least <= OFFICIAL["ASSET_on_512"] <= most and least <= error <= most
    # Of the misprints the density costs the error, and 1 / M^2 the objective: 2.09 after 100,
    # not 0.46.
    mistakes = BANDS["mistakes_on_a9a_on_512_100_epochs"]
    assert error == pytest.approx(mistakes["correct"], abs=0.003)
    assert train.objective(learner.weights, 1e-3 / TRAIN) < (0.65 if epochs == 30 else 0.48)


def test_errors_with_landmarks_are_in_the_bands(a9a, a9a_test):
    """Of all rows, and of 8,000: they share the map, which takes longer than the steps.

    8 of the golden 100 epochs and 20 of 400, or all of them: the errors differ by 0.003.
    """
    draw, epochs = np.random.default_rng(0), 8 if SPLITS == 1 else 100
    stage = nystroem(a9a, draw)
    learners = [asset(step, TRAIN, epochs // 2 * TRAIN) for step in STEPS.values()]
    train, test, (least, most) = Mapped(stage, a9a), Mapped(stage, a9a_test), OFFICIAL["accept"]
    learn(learners, train, epochs, draw)
    for learner, golden in zip(learners, ("ASSET_nys512", "ASSET_star_nys512"), strict=True):
        error = test.error(learner.weights)
        assert least <= error <= most
        assert error == pytest.approx(OFFICIAL[golden], abs=0.004)

    train.keep(8000)
    epochs = 20 if SPLITS == 1 else 400
    learner = asset("sqrt", 8000, epochs // 2 * 8000)
    learn([learner], train, epochs, draw)
    error = test.error(learner.weights)
    # Near the error of an exact machine.
    assert FEW["sklearn_SVC_err"] - 0.005 <= error <= FEW["ASSET_err"] + 0.005
    objective = train.objective(learner.weights, 1e-3 / 8000)
    LOG.info("8,000 rows: error %.4f, objective %.4f", error, objective)
    # The features span a part of the kernel's space, and an exact machine has its best there.
    assert objective >= FEW["SVC_primal_lambda_scale"]
    if epochs == 400:
        assert objective == pytest.approx(FEW["ASSET_obj_400_epochs"], rel=0.01)


def test_large_lambda_and_small_gamma_answer_with_the_larger_class(a9a, a9a_test):
    stage = Fourier(123, COMPONENTS, GAMMA, 0)
    rows, test = a9a[:4000], Mapped(stage, a9a_test)
    learner = asset("sqrt", 1, 2000)
    learn([learner], Mapped(stage, rows), 1, np.random.default_rng(0))
    assert test.error(learner.weights) == pytest.approx(OFFICIAL["majority"], abs=5e-5)
