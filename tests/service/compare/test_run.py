"""A run by its definition: each row is predicted before its label is used, for everyone."""

import re
import tempfile
from contextlib import closing
from itertools import pairwise

import numpy as np
import pytest

from dualstream.client import BadInput
from dualstream.service.compare import peers as peers_module
from dualstream.service.compare.baselines import LastLabel, MostFrequent, RunningMean
from dualstream.service.compare.contestants import OnlineLearner, Predictions
from dualstream.service.compare.figures import POINTS, Figures
from dualstream.service.compare.file_rows import FileRows
from dualstream.service.compare.options import Options, Span
from dualstream.service.compare.peers import PEERS, PeerKind
from dualstream.service.compare.prepare import _group_rows, estimate_s, prepare
from dualstream.service.compare.result import PARTS, part_bounds, result_of
from dualstream.service.compare.run import Run
from dualstream.service.compare.schedule import BLOCK
from dualstream.service.compare.stored_rows import StoredRows
from dualstream.solvers import Batch, make_learner
from tests.service.compare.support import read, samples, written

LIGHT = {"algorithm": "sgd"}
ROWS = 700


class Recorder:
    """A peer that predicts the mean label of its window, and records what it was trained on."""

    def __init__(self) -> None:
        self.trained: list[np.ndarray] = []

    def __call__(self, training):
        self.trained.append(training.labels)
        mean = float(training.labels.mean())

        def predict(rows):
            if not training.classes:
                return np.full(rows.shape[0], mean)
            return np.tile([1.0 - mean, mean], (rows.shape[0], 1))

        return predict


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, FileRows]:
    folder = tmp_path_factory.mktemp("compare")
    tasks = ("binary", "multiclass", "regression")
    paths = {t: written(folder, samples(ROWS, task=t), f"{t}.csv") for t in tasks}
    return {task: read(path, "at") for task, path in paths.items()}


@pytest.fixture
def recorder(monkeypatch) -> Recorder:
    recorder = Recorder()
    kind = PeerKind("Recorder", "numpy", "numpy", recorder)
    monkeypatch.setattr(peers_module, "PEERS", dict(PEERS) | {"recorder": kind})
    monkeypatch.setattr("dualstream.service.compare.prepare.PEERS", peers_module.PEERS)
    return recorder


def run_of(got: FileRows, **options) -> Run:
    got = FileRows(got.spec | LIGHT, got.rows, got.columns)
    run, _ = prepare(got, Options(**{"peers": ("recorder",), **options}))
    run.go()
    return run


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
@pytest.mark.parametrize("delay", [0, 30])
def test_losses_are_those_of_a_plain_loop(files, recorder, task, delay):
    got = files[task]
    run = run_of(got, delay=Span(delay))
    first = run.compare_from
    assert first == run.schedule.retrainings[0]
    learner = make_learner(got.spec | LIGHT)
    truth, wrong = got.rows.labels(0, ROWS), np.zeros(ROWS)
    for row in range(ROWS):
        one = got.rows.batch(row, row + 1)
        if task == "multiclass":
            scored = learner.predict_classes(one)
            best = scored.classes[scored.best[0]] if scored.best[0] >= 0 else ""
            wrong[row] = best != got.rows.classes[int(truth[row])]
        else:
            score = learner.predict(one)[0]
            is_number = task == "regression"
            wrong[row] = abs(score - truth[row]) if is_number else (score >= 0) != (truth[row] > 0)
        if row >= delay:
            learner.learn(got.rows.batch(row - delay, row - delay + 1))
    figures = run.figures["Dualstream"]
    assert figures.rows == ROWS - first
    assert figures.loss == pytest.approx(wrong[first:].mean(), rel=1e-12)


@pytest.mark.parametrize("delay", [0, 45])
def test_baselines_are_those_of_a_plain_loop(files, recorder, delay):
    for task, got in files.items():
        run = run_of(got, delay=Span(delay))
        truth, first = got.rows.labels(0, ROWS), run.compare_from
        losses = {one.name: [] for one in (MostFrequent, LastLabel, RunningMean)}
        for row in range(first, ROWS):
            labels = truth[: row - delay]
            values, counts = np.unique(labels, return_counts=True)
            tied = values[counts == counts.max()]
            losses["last label"].append(abs(truth[row] - labels[-1]))
            losses["mean so far"].append(abs(truth[row] - labels.mean()))
            losses["most frequent label"].append((truth[row] != tied).mean())
        for name, figures in run.figures.items():
            if name in losses:
                expected = np.array(losses[name])
                if task != "regression":
                    expected = (expected > 0).astype(float)
                # The most frequent label is in doubt at a tie.
                assert figures.loss == pytest.approx(expected.mean(), abs=0.01), (task, name)


def test_a_peer_is_trained_on_labels_of_its_window_that_are_available(files, recorder):
    got = files["regression"]
    run = run_of(got, delay=Span(20), window=Span(100), retrain_every=Span(150))
    truth = got.rows.labels(0, ROWS)
    assert run.schedule.retrainings == [150, 300, 450, 600]
    expected = np.zeros(ROWS)
    for row, labels in zip(run.schedule.retrainings, recorder.trained, strict=True):
        np.testing.assert_array_equal(labels, truth[row - 120 : row - 20])
        expected[row:] = abs(truth[row:] - labels.mean())
    assert run.compare_from == 150
    assert run.figures["Recorder"].loss == pytest.approx(expected[150:].mean())
    peer = run.contestants[-1]
    assert peer.trainings == 4 and peer.predicted == ROWS


def test_a_window_of_one_class_predicts_it(files, recorder):
    got = files["binary"]
    run = run_of(got, window=Span(1), retrain_every=Span(100))
    truth = got.rows.labels(0, ROWS)
    expected = [truth[row] != truth[row // 100 * 100 - 1] for row in range(100, ROWS)]
    assert run.figures["Recorder"].loss == pytest.approx(np.mean(expected))
    assert recorder.trained == []


def test_a_peer_that_fails_is_left_out_or_keeps_its_model(files, monkeypatch):
    calls = []

    def train(training):
        calls.append(training)
        if len(calls) in fails:
            raise ValueError("cannot\nbe trained")
        return Recorder()(training)

    kinds = dict(PEERS) | {"bad": PeerKind("Bad", "numpy", "numpy", train)}
    monkeypatch.setattr(peers_module, "PEERS", kinds)
    monkeypatch.setattr("dualstream.service.compare.prepare.PEERS", kinds)
    fails = {1}
    run = run_of(files["binary"], peers=("bad",))
    assert run.notes == ["Bad is left out: ValueError: cannot"]
    assert "Bad" not in run.figures and len(calls) == 1
    fails, calls[:] = {2}, []
    run = run_of(files["binary"], peers=("bad",))
    peer = run.contestants[-1]
    assert (peer.failed, peer.trainings, run.notes) == (1, 19, [])


def test_an_interrupt_leaves_the_figures_of_whole_blocks(files, recorder):
    got = files["binary"]
    run, _ = prepare(FileRows(got.spec | LIGHT, got.rows, got.columns), Options(("recorder",)))

    def stop(run: Run, rows: int) -> None:
        if rows > 300:
            raise KeyboardInterrupt

    run.go(stop)
    assert run.is_interrupted and run.done == 333
    assert {one.rows for one in run.figures.values()} == {run.done - run.compare_from}
    result = result_of(run, got, Options(), "rows.csv")
    assert result["done"] == 333 and result["compared"] == 300
    assert result["parts"][-1]["last"] == 333


@pytest.mark.parametrize("rows", [10, 333, 32_561])
def test_parts_have_the_rows_of_their_points(rows):
    figures = Figures("regression", rows)
    part = np.arange(rows) * POINTS // rows // (POINTS // PARTS)
    losses = np.random.default_rng(0).random(rows)
    figures.add(0, np.zeros(rows), Predictions(losses), losses)
    bounds = part_bounds(rows)
    assert bounds == [*np.searchsorted(part, range(PARTS)).tolist(), rows]
    expected = [losses[first:stop].mean() for first, stop in pairwise(bounds)]
    assert figures.mean_by(PARTS) == pytest.approx(expected)


def test_further_learners_get_the_same_rows(files, recorder):
    run = run_of(files["binary"], specs=({"algorithm": "perceptron"}, {"algorithm": "perceptron"}))
    names = [one.name for one in run.contestants if isinstance(one, OnlineLearner)]
    assert names == ["Dualstream", "perceptron", "perceptron 2"]
    assert run.figures["perceptron"].loss == run.figures["perceptron 2"].loss
    assert run.gains["perceptron"].rows == run.figures["perceptron"].rows
    for spec in ({"columns": {}}, {"features": "hashed"}):
        with pytest.raises(BadInput, match="all learners get the same rows"):
            run_of(files["binary"], specs=(spec,))
    with pytest.raises(BadInput, match="--with: algorithm must be one of"):
        run_of(files["binary"], specs=({"algorithm": "nothing"},))


def test_peers_that_cannot_run_are_named(files, monkeypatch):
    with pytest.raises(BadInput, match="--peer must be one of lightgbm, boosting, linear, got 'x'"):
        prepare(files["binary"], Options(("x",)))
    monkeypatch.setattr(peers_module, "find_spec", lambda name: None)
    run, notes = prepare(files["binary"], Options())
    assert [one.kind for one in run.contestants] == ["learner", "baseline", "baseline"]
    assert notes == [
        "LightGBM is left out: lightgbm is not installed: pip install 'dualstream[compare]'",
        "HistGradientBoosting is left out: scikit-learn is not installed:"
        " pip install 'dualstream[compare]'",
    ]
    run.go()
    assert run.compare_from == 0


@pytest.mark.parametrize("name", ["lightgbm", "boosting", "linear"])
def test_peers_learn_tables_and_sparse_rows(files, name):
    pytest.importorskip(PEERS[name].module)
    for task, got in files.items():
        for columns in (got.columns, None):
            if columns is None and not PEERS[name].takes_sparse:
                continue
            read = FileRows(got.spec | LIGHT, got.rows, columns)
            run, notes = prepare(read, Options((name,), retrain_every=Span(400)))
            assert not notes
            run.go()
            peer, constant = run.contestants[-1], run.contestants[1]
            assert peer.trainings == 1 and not peer.failed, peer.reason
            assert run.figures[peer.name].loss < 0.6 * run.figures[constant.name].loss, (task, name)


def test_boosting_gets_the_most_frequent_categories():
    rows = np.array([[code] for code in range(300)] + [[299.0], [298.0], [np.nan]], np.float64)
    got = peers_module._Recode(rows, [True])(rows)[:, 0]
    # 254 codes from 0 on; others, and missing ones, are missing.
    assert np.unique(got[~np.isnan(got)]).tolist() == list(range(254))
    assert got[298] == got[301] and got[299] == got[300] and np.isnan(got[302])
    unseen = peers_module._Recode(rows[:5], [True])(np.array([[3], [77]], np.float64))
    assert unseen[0, 0] == 3.0 and np.isnan(unseen[1, 0])
    numbers = peers_module._Recode(rows, [False])(rows)
    np.testing.assert_array_equal(numbers, rows)


def test_the_estimate_knows_that_late_labels_arrive_in_small_groups(files):
    for delay, rows in ((0, BLOCK), (50, 1), (300, 2)):
        run, _ = prepare(files["binary"], Options(("linear",), delay=Span(delay)))
        assert _group_rows(run) == rows
        assert estimate_s(run) > 0.0


def mapped_kb() -> int:
    """Memory of mapped files that are deleted."""
    with open("/proc/self/smaps") as file:
        maps = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", file.read(), flags=re.MULTILINE)
    deleted = [one for one in maps if "(deleted)" in one]
    return sum(int(kb) for one in deleted for kb in re.findall(r"^Rss: +(\d+) kB", one, re.M))


def test_rows_that_were_read_leave_memory():
    rows = StoredRows(3, 3, {})
    batch = Batch.from_dense(np.arange(300_000.0).reshape(-1, 3), np.ones(100_000))
    with closing(rows):
        rows.append(batch, {}, None)
        rows.finish()
    before = mapped_kb()
    assert rows.batch(0, 100_000).values.tobytes() == batch.values.tobytes()
    assert mapped_kb() > before + 3_000
    rows.release_pages()
    assert mapped_kb() < before + 100
    assert rows.batch(70_000, 70_010).values.tobytes() == batch[70_000:70_010].values.tobytes()


def test_a_full_folder_of_temporary_files_is_named(monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: open("/dev/full", "wb", buffering=0))
    rows = StoredRows(2, 2, {"table": 2, "frozen": 0})
    with pytest.raises(BadInput, match=r"No space left on device .* set TMPDIR"):
        rows.append(Batch.from_dense(np.ones((3, 2)), np.ones(3)), {}, None)
    rows.close()
