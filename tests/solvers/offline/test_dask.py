"""fit: the optimum of one machine, certificates from the definition, the same bits after a kill."""

import os
import signal

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from dualstream.solvers import Batch, InvalidRow, InvalidSpec, solve
from dualstream.solvers.offline import dask as fitting
from dualstream.solvers.offline.dask import fit
from dualstream.wire.dask import partitions_of
from tests.solvers import reference
from tests.solvers.offline.rows import dual, primal, sparse_rows

RHO = 0.1
LOSSES = ("logistic", "smooth_hinge", "hinge", "squared")
MARGIN = LOSSES[:3]


def rows_for(loss: str) -> Batch:
    """120 rows of different weights, one of them of none."""
    weights = np.random.default_rng(5).uniform(0.2, 2.0, 120)
    weights[7] = 0.0
    return sparse_rows(binary=loss in MARGIN, weights=weights)


def parts_of(batch: Batch, ends: tuple[int, ...] = (0, 30, 30, 50, 120)) -> list:
    """Partitions of unequal size, one of them without rows."""
    return [dask.delayed(batch[a:b]) for a, b in zip(ends, ends[1:], strict=False)]


@pytest.mark.parametrize("loss", LOSSES)
def test_the_optimum_is_that_of_one_machine(cluster, loss):
    batch, kind = rows_for(loss), reference.loss_spec(loss)
    alone = solve(batch, loss=kind, rho=RHO, tol=1e-9, intercept="penalized", max_epochs=50_000)
    result = fit(parts_of(batch), loss=kind, rho=RHO, tol=1e-4, client=cluster)
    assert result.converged and 0.0 <= result.gap <= 1e-4 * result.primal
    assert result.primal == pytest.approx(alone.primal, rel=1e-4)
    assert result.dual <= alone.primal
    w = np.append(result.weights, result.intercept)
    assert result.primal == pytest.approx(primal(batch, w, loss, RHO, bias=True), rel=1e-12)
    assert [one.gap for one in result.trace][-1] == result.gap and len(
        result.trace
    ) == result.rounds + 1
    assert result.rows == 119  # one has no weight
    assert result.as_weights()["weights"] == result.weights.tolist()
    # Three partitions have rows: u down, u_k and three numbers up, at each certificate.
    assert result.bytes_exchanged == len(result.trace) * 3 * (2 * len(w) + 3) * 8


def test_the_gap_is_that_of_the_definition(cluster, monkeypatch):
    """After each round: with the dual variables of the workers, by brute force."""
    batch, seen = rows_for("logistic"), []
    certify = fitting._Rounds.certify

    def watched(self):
        bounds = certify(self)
        seen.append((bounds, self.weights, np.concatenate(cluster.gather(self._duals))))
        return bounds

    monkeypatch.setattr(fitting._Rounds, "certify", watched)
    fit(parts_of(batch), rho=RHO, intercept="none", tol=1e-3, client=cluster)
    assert len(seen) > 2
    for bounds, w, duals in seen:
        by_definition = primal(batch, w[:-1], "logistic", RHO)
        lower = dual(batch, duals, "logistic", RHO)
        assert bounds.primal == pytest.approx(by_definition, rel=1e-12)
        assert bounds.dual == pytest.approx(lower, rel=1e-12)
        assert bounds.gap == pytest.approx(by_definition - lower, abs=1e-14)


def test_the_same_seed_gives_the_same_bits_also_when_a_worker_is_killed(cluster):
    batch, killed = rows_for("logistic"), []

    def run(seed, kill=False):
        def watch(progress):
            if kill and progress.epochs == 15.0:
                # The duals that this process has are recomputed, from the first round on.
                pid = next(iter(cluster.run(os.getpid).values()))
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

        return fit(parts_of(batch), rho=0.02, tol=1e-4, seed=seed, callback=watch, client=cluster)

    first, through, other = run(3), run(3, kill=True), run(4)
    assert len(killed) == 1 and first.converged and first.rounds > 4
    assert np.array_equal(through.weights, first.weights) and through.intercept == first.intercept
    assert [one.gap for one in through.trace] == [one.gap for one in first.trace]
    assert not np.array_equal(other.weights, first.weights)


def test_a_data_frame_is_fitted_by_the_names_of_its_columns(cluster):
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"age": rng.normal(size=90), "member": rng.random(90) < 0.5})
    frame["price"] = rng.normal(size=90) - frame["age"]
    frame["weight"] = rng.choice([0.5, 1.0], 90)
    data = dd.from_pandas(frame, npartitions=3)
    result = fit(data, "price", weight="weight", loss="squared", rho=RHO, tol=1e-5, client=cluster)
    x = frame[["age", "member"]].to_numpy(np.float64)
    batch = Batch.from_dense(x, frame["price"], frame["weight"])
    alone = solve(batch, loss="squared", rho=RHO, tol=1e-10, intercept="penalized")
    assert result.features == ("age", "member")
    assert result.weights == pytest.approx(alone.weights, abs=1e-2)
    assert result.as_weights() == {
        "weights": dict(zip(("age", "member"), result.weights.tolist(), strict=True)),
        "intercept": result.intercept,
        "rows": 90,
        "objective": result.primal,
        "gap": result.gap,
    }
    ended = fit(data, "price", loss="squared", tol=0.0, max_rounds=2, client=cluster)
    assert (ended.status, ended.rounds, len(ended.trace)) == ("max_rounds", 2, 3)
    assert fit(data, "price", callback=lambda _: True, loss="squared").status == "cancelled"


def test_shuffled_partitions_share_the_shuffle(cluster):
    frame = pd.DataFrame({"y": [1, 0] * 20, "a": np.arange(40.0)})
    data = dd.from_pandas(frame, npartitions=4).shuffle("a")
    tasks = {key for part in partitions_of(data) for key in dict(part.__dask_graph__())}
    assert len(tasks) == len(dict(data.optimize().__dask_graph__()))
    assert fit(data, max_rounds=1, client=cluster).rows == 40


def test_what_cannot_be_fitted_is_named(cluster):
    frame = pd.DataFrame({"y": [1, -1, 3], "a": [1.0, 2.0, 3.0], "city": ["x", "y", "z"]})
    data = dd.from_pandas(frame, npartitions=1)
    good = frame[["y", "a"]].assign(y=[1, 0, 1])
    for part, why in (
        (frame, "column 'city' has the type .*; the label, the weight and all features must"),
        (good.assign(zip=["02134", "1", "2"]), "column 'zip' has the type"),
        (good.assign(at=pd.date_range("2024", periods=3)), "column 'at' has the type datetime64"),
        (good.assign(b=[1.0, np.nan, 2.0]), "column 'b' has missing or infinite values"),
        (good.set_axis(["y", "y"], axis=1), "2 columns are named 'y'"),
        (good.assign(b=1).set_axis(["y", 1, "1"], axis=1), "2 columns are named '1'"),
        (good[["a"]], "there is no column 'y'; the columns are a"),
        (good["a"], "it must be a pandas DataFrame or a Batch"),
    ):
        with pytest.raises(ValueError, match=f"^partition 1: {why}"):
            fit([dask.delayed(good), dask.delayed(part)], client=cluster)
    with pytest.raises(InvalidRow, match="row 2: logistic takes .*, got 3, in partition 0"):
        fit(data[["y", "a"]], client=cluster)
    with pytest.raises(InvalidSpec, match=r"^intercept must be another one for sdca"):
        fit(data, intercept="free", client=cluster)
    with pytest.raises(InvalidSpec, match=r"local_epochs must be a whole number in \[1, 1e\+06\]"):
        fit(data, local_epochs=0, client=cluster)
    with pytest.raises(InvalidSpec, match="rows with a weight above 0"):
        fit(data[data["a"] > 9.0][["y", "a"]], client=cluster)
    with pytest.raises(ValueError, match="partition 1 has other columns than partition 0"):
        fit([dask.delayed(Batch.from_dense(np.ones((1, n)), [1])) for n in (2, 3)], client=cluster)
    with pytest.raises(ValueError, match="must be a Dask DataFrame or a list of delayed"):
        fit(frame, client=cluster)
    with pytest.raises(ValueError, match="must be a Dask DataFrame or a list of delayed"):
        fit(data.to_dask_array(lengths=True), client=cluster)
