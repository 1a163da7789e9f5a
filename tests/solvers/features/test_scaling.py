"""Balanced scaling and norms against their definitions in plain Python."""

import json
import lzma
import os
from pathlib import Path

import numpy as np
import pytest

from dualstream.solvers import Batch
from dualstream.solvers.features.norm import Norm
from dualstream.solvers.features.scaling import Balanced
from dualstream.solvers.losses.loss_table import make_loss
from tests.solvers.conftest import GOLDEN
from tests.solvers.staging import BalancedReference, NormReference, batch_of, rows_of
from tests.solvers.support import as_bytes, mixed_rows

OPTIONS = [(0.25, True), (0.0, True), (0.25, False), (0.6, True)]


def assert_close(result, expected):
    assert len(result) == len(expected)
    for i, (row, reference) in enumerate(zip(rows_of(result), expected, strict=True)):
        assert list(row) == sorted(reference), i
        for j, h in reference.items():
            assert row[j] == pytest.approx(h, rel=1e-12, abs=1e-12), (i, j)


@pytest.mark.parametrize(("power", "moments"), OPTIONS)
def test_scaled_rows_are_those_of_the_definition(power, moments):
    batch, reference = mixed_rows(600), BalancedReference(power, moments)
    expected = [reference.scale(row) for row in rows_of(batch)]
    assert_close(Balanced(8, power, moments).learn(batch), expected)
    assert bool(reference.dense) == moments


def test_a_column_turns_dense_at_row_21_and_sparse_again():
    rows = [{0: float(1 + i % 3), 1: 1.0} for i in range(30)] + [{1: float(i)} for i in range(100)]
    out = rows_of(Balanced(2, 0.25, True).learn(batch_of(rows, 2)))
    assert out[19] == {0: pytest.approx(2 / np.sqrt(89 / 20), rel=1e-12), 1: 1.0}
    assert list(out[20]) == [0]  # column 1 is constant so far: its standard deviation is 0
    assert 0 in out[119] and 0 not in out[120]  # 30 of 120 rows is a quarter, of 121 less


@pytest.mark.parametrize(("power", "moments"), OPTIONS)
def test_peek_is_what_learn_would_say_and_changes_no_bit(power, moments):
    stage, batch = Balanced(8, power, moments), mixed_rows(200)
    for i in range(len(batch)):
        before = as_bytes(stage.state())
        peeked = stage.peek(batch[i : i + 1])
        assert as_bytes(stage.state()) == before
        learned = stage.learn(batch[i : i + 1])
        assert learned.indices.tobytes() == peeked.indices.tobytes()
        assert learned.values.tobytes() == peeked.values.tobytes()


@pytest.mark.parametrize(("power", "moments"), OPTIONS)
def test_undo_takes_every_row_back(power, moments):
    stage, batch = Balanced(8, power, moments), mixed_rows(300)
    stage.learn(batch[:90])
    for cut in (91, 115, 250, 300):
        before = as_bytes(stage.state())
        stage.learn(batch[90:cut])
        stage.undo()
        assert as_bytes(stage.state()) == before
    batch.weights[95:99] = 0.0
    stage.learn(batch[90:110])
    other = Balanced(8, power, moments)
    other.learn(batch[:95])
    other.learn(batch[99:110])
    assert as_bytes(stage.state()) == as_bytes(other.state())


@pytest.mark.parametrize("size", [1e-200, 1e-100, 1e100])
@pytest.mark.parametrize(("power", "moments"), OPTIONS)
def test_extreme_numbers_stay_numbers(size, power, moments):
    batch = mixed_rows(100)
    batch = batch.with_rows(batch.indptr, batch.indices, size * batch.values / 20, batch.dim)
    out = Balanced(8, power, moments).learn(batch)
    assert np.isfinite(out.values).all()


@pytest.mark.parametrize("kind", ["row", "running"])
def test_normed_rows_are_those_of_the_definition(kind):
    batch, reference = mixed_rows(200), NormReference(kind)
    batch = Batch.concat([batch_of([{}, {}], 8), batch, batch_of([{}], 8)])
    expected = [reference.scale(row) for row in rows_of(batch)]
    stage = Norm(running=kind == "running")
    for i in range(0, len(batch), 40):
        assert_close(stage.peek(batch[i : i + 1]), expected[i : i + 1])
        assert_close(stage.learn(batch[i : i + 40]), expected[i : i + 40])


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e-100, 1e100])
def test_row_norm_is_one_in_every_unit(size):
    out = Norm(running=False).learn(batch_of([{0: 3 * size / 5, 1: 4 * size / 5}], 2))
    assert out.values == pytest.approx([0.6, 0.8], rel=1e-12)


@pytest.mark.data
@pytest.mark.skipif("DUALSTREAM_DATA" not in os.environ, reason="DUALSTREAM_DATA is not set")
@pytest.mark.parametrize("name", ["elec2", "phishing", "a9a", "ijcnn1"])
def test_real_streams_are_scaled_as_the_definition_says(name):
    text = lzma.decompress((Path(os.environ["DUALSTREAM_DATA"]) / f"{name}.xz").read_bytes())
    batch = Batch.from_libsvm(text, 300).batch[:500]
    for power, moments in OPTIONS:
        reference = BalancedReference(power, moments)
        expected = [reference.scale(row) for row in rows_of(batch)]
        assert_close(Balanced(300, power, moments).learn(batch), expected)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif("DUALSTREAM_DATA" not in os.environ, reason="DUALSTREAM_DATA is not set")
@pytest.mark.parametrize("name", ["elec2", "phishing", "a9a"])
def test_published_mistakes_are_met_by_steps_of_fixed_strength(name):
    text = lzma.decompress((Path(os.environ["DUALSTREAM_DATA"]) / f"{name}.xz").read_bytes())
    batch = Batch.from_libsvm(text, 300).batch
    rows = Balanced(300, 0.25, True).learn(batch)
    u, strength, loss, scores = np.zeros(301), 30.0, make_loss("logistic"), []
    for i, y in enumerate(np.where(batch.labels > 0, 1.0, -1.0)):
        entries = slice(rows.indptr[i], rows.indptr[i + 1])
        positions, h = np.append(rows.indices[entries], 300), np.append(rows.values[entries], 1.0)
        scores.append(h @ u[positions] / strength)
        u[positions] += loss.dual_step(scores[-1], h @ h / strength, y) * h
    wrong = 100 * np.mean((np.array(scores) >= 0) != (batch.labels > 0))
    streams = json.loads((GOLDEN / "streams.json").read_text())["streams"]
    assert round(wrong, 3) == pytest.approx(
        streams[name]["prototype"]["single_papers"][0], abs=2e-3
    )
