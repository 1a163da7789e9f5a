"""Contract of all learners: one suite over `specs.SPECS`."""

import tracemalloc
from itertools import product

import numpy as np
import pytest

from dualstream.solvers import (
    Batch,
    CorruptState,
    InvalidRow,
    Learner,
    ShapeMismatch,
    dump,
    load,
    make_learner,
    make_progressive,
    resolve_spec,
)
from dualstream.solvers.jit import DISABLED, compiled_signatures
from dualstream.solvers.rows.shared_ones import are_shared_ones, shared_ones
from dualstream.solvers.spec.algorithms import ALGORITHMS
from dualstream.solvers.spec.make_learner import warm
from dualstream.solvers.spec_cache import FixedSpec
from tests.shared_state import changeable
from tests.solvers.specs import DIM, SPECS, WITHOUT_STAND, stream
from tests.solvers.support import content, relabelled, rescaled

N = 40 if DISABLED else 240
MANY = 1_000 if DISABLED else 20_000
# The rewind may keep a few batches; ten bytes per row are more.
GROWTH = 524_288 if DISABLED else 100_000
BINARY = [spec for spec in SPECS.values() if spec.get("task", "binary") == "binary"]
COLUMNS = ("indptr", "indices", "values", "labels", "weights")


def learned(spec, *batches):
    """A learner that has learned these batches in order."""
    learner = make_learner(spec)
    for batch in batches:
        learner.learn(batch)
    return learner


def pieces(batch, seed):
    """The batch, split at random indices, with some empty pieces."""
    cuts = np.sort(np.random.default_rng(seed).integers(0, len(batch) + 1, 9)).tolist()
    return [batch[a:b] for a, b in zip([0, *cuts], [*cuts, len(batch)], strict=True)]


def test_ones_that_all_rows_share_are_learned_as_any_others(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            batch = stream(spec, N // 4)
            rows, about = (batch.indptr, batch.indices), (batch.dim, batch.classes)
            ones, weights = shared_ones(batch.nnz), shared_ones(len(batch))
            of_shared = Batch(*rows, ones, batch.labels, weights, *about)
            of_own = Batch(*rows, ones.copy(), batch.labels, weights.copy(), *about)
            assert are_shared_ones(of_shared.values)
            one, other = make_learner(spec), make_learner(spec)
            for learner, rows in ((one, of_shared), (other, of_own)):
                learner.learn(rows[: N // 8])
                learner.learn(rows[N // 8 :])
            assert one.predict(of_shared).tobytes() == other.predict(of_own).tobytes()
            assert content(one) == content(other)


def test_learners_of_one_specification_share_nothing_that_changes(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            fixed = FixedSpec(resolve_spec(spec))
            one, other, batch = make_learner(fixed), make_learner(fixed), stream(spec, N // 2)
            assert not changeable(one).keys() & changeable(other).keys()
            for row in range(0, len(batch), 9):
                one.learn(batch[row : row + 9])
                other.learn(batch[row : row + 5])
            assert content(one) == content(learned(spec, batch))
            apart = [batch[row : row + 5] for row in range(0, len(batch), 9)]
            assert content(other) == content(learned(spec, *apart))
            assert content(make_learner(fixed)) == content(make_learner(spec))
            assert not changeable(one).keys() & changeable(make_learner(fixed)).keys()


def assert_finite(learner):
    for name, array in learner.state().items():
        assert np.all(np.isfinite(array)), name
    assert np.all(np.isfinite(learner.weights)) and np.isfinite(learner.intercept)


def assert_rejected_leave_no_trace(spec, batch):
    """Rows are finite or rejected, and rejected rows have no effect."""
    learner = make_learner(spec)
    out = learner.learn(batch)
    assert_finite(learner)
    for numbers in (out.scores, out.losses):
        assert np.all(np.isnan(numbers) == out.rejected)
        assert np.all(np.isfinite(numbers[~out.rejected]))
    assert not np.any(out.updated & out.rejected)
    assert learner.samples == np.count_nonzero(~out.rejected)
    assert content(learner) == content(learned(spec, batch.take(~out.rejected)))
    return out


def test_every_algorithm_is_in_the_suite():
    named = {spec["algorithm"] for spec in SPECS.values()}
    assert named | WITHOUT_STAND == set(ALGORITHMS)


def test_no_kernel_is_compiled_while_learners_run():
    warm()
    before = compiled_signatures()
    for spec in SPECS.values():
        learner = learned(spec, stream(spec, 20))
        learner.predict(stream(spec, 20, seed=1))
        learner.certificate()
        learner.restore(learner.state())
        metrics = make_progressive(learner.spec)
        batch = stream(spec, 5, seed=2)
        out = learner.learn(batch)
        metrics.update(batch.labels, out.scores, out.losses, ~out.rejected)
        metrics.summary()
    assert compiled_signatures() == before
    assert set(before.values()) <= {0, 1}


def test_a_batch_is_its_rows_one_by_one(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            batch = stream(spec, N)
            whole = make_learner(spec)
            out = whole.learn(batch)
            for cuts in (pieces(batch, 1), pieces(batch, 2), [batch[i : i + 1] for i in range(N)]):
                learner = make_learner(spec)
                outs = [learner.learn(piece) for piece in cuts]
                assert content(learner) == content(whole)
                for name in ("scores", "losses", "updated", "rejected"):
                    joined = np.concatenate([getattr(each, name) for each in outs])
                    assert joined.tobytes() == getattr(out, name).tobytes(), name


def test_restored_learner_continues_as_if_never_stopped(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            first, second = stream(spec, N), stream(spec, N, seed=1)
            learner, restored = learned(spec, first), make_learner(spec)
            arrays, _ = load(content(learner))
            restored.restore(arrays)
            assert content(restored) == content(learner)
            a, b = learner.learn(second), restored.learn(second)
            assert a.scores.tobytes() == b.scores.tobytes()
            assert content(restored) == content(learner)


def test_a_restore_forgets_what_was_before(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            learner, other = learned(spec, stream(spec, N)), learned(spec, stream(spec, N, seed=3))
            other.restore(learner.state())
            batch = stream(spec, N, seed=1)
            learner.learn(batch)
            other.learn(batch)
            assert content(other) == content(learner)


def test_state_is_a_copy(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            learner = learned(spec, stream(spec, N))
            before, state = content(learner), learner.state()
            learner.learn(stream(spec, N, seed=1))
            assert dump(state, {}) == before
            other = make_learner(spec)
            other.restore(state)
            for array in state.values():
                array[...] = 0
            assert content(other) == before


def test_a_broken_state_changes_nothing(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            learner = learned(spec, stream(spec, N))
            before = content(learner)
            for name, array in learner.state().items():
                states = [{k: v for k, v in learner.state().items() if k != name}]
                states.append(learner.state() | {name: np.zeros((3, 3, 3))})
                if array.dtype == np.float64 and array.size:
                    states.append(learner.state() | {name: np.full_like(array, np.nan)})
                for state in states:
                    with pytest.raises(CorruptState):
                        learner.restore(state)
                assert content(learner) == before, name


def test_the_same_rows_give_the_same_bytes(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            batch = stream(spec, N)
            assert content(learned(spec, batch)) == content(learned(spec, batch))


def test_rows_are_not_written_to(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            batch = stream(spec, N)
            before = [getattr(batch, name).copy() for name in COLUMNS]
            for name in COLUMNS:
                getattr(batch, name).setflags(write=False)
            learner = learned(spec, batch)
            learner.predict(batch)
            for name, column in zip(COLUMNS, before, strict=True):
                assert getattr(batch, name).tobytes() == column.tobytes(), name
            assert content(learner) == content(learned(spec, stream(spec, N)))


def test_reading_changes_no_bit(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            learner, batch = learned(spec, stream(spec, N)), stream(spec, N, seed=1)
            before = content(learner)
            scores = learner.predict(batch)
            learner.probabilities(scores)
            learner.certificate()
            assert isinstance(learner.nonzeros, int) and isinstance(learner.intercept, float)
            weights = learner.weights
            weights[:] = np.nan
            assert content(learner) == before
            assert learner.predict(batch).tobytes() == scores.tobytes()


def test_a_row_is_scored_before_it_is_learned(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            learner = learned(spec, stream(spec, N))
            for i in range(10):
                row = stream(spec, 10, seed=1)[i : i + 1]
                score = learner.predict(row)
                assert learner.learn(row).scores.tobytes() == score.tobytes()


def test_zero_rows_are_learned(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            labels = np.tile([1.0, -1.0], 4)
            zeros = Batch.from_dense(np.zeros((8, DIM)), labels)
            for learner in (make_learner(spec), learned(spec, stream(spec, N))):
                before = learner.samples
                assert not learner.learn(zeros).rejected.any()
                assert learner.samples == before + 8
                assert_finite(learner)


def test_duplicate_rows_are_learned(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            batch = stream(spec, 3, weighted=False).take([1] * 50)
            flips = relabelled(batch, batch.labels * np.tile([1.0, -1.0], 25))
            for rows in (batch, flips):
                learner = make_learner(spec)
                assert not learner.learn(rows).rejected.any()
                assert_finite(learner)


def test_one_label_only_is_learned(subtests):
    for spec, label in product(SPECS.values(), [1.0, -1.0]):
        with subtests.test(spec=spec, label=label):
            batch = stream(spec, N)
            learner = make_learner(spec)
            assert not learner.learn(relabelled(batch, np.full(N, label))).rejected.any()
            assert_finite(learner)


def test_label_0_is_the_negative_one(subtests):
    for spec in BINARY:
        with subtests.test(spec=spec):
            batch = stream(spec, N)
            zeros = relabelled(batch, np.maximum(batch.labels, 0.0))
            assert content(learned(spec, zeros)) == content(learned(spec, batch))


def test_an_unknown_label_learns_no_row(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            learner, batch = learned(spec, stream(spec, N)), stream(spec, 10, seed=1)
            before, labels = content(learner), batch.labels.copy()
            labels[7] = np.nan
            with pytest.raises(InvalidRow) as error:
                learner.learn(relabelled(batch, labels))
            assert error.value.row == 7
            assert content(learner) == before


def test_rows_of_another_width_are_refused(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            learner, wide = make_learner(spec), Batch.from_dense(np.ones((2, DIM + 1)), [1.0, -1.0])
            for method in (learner.learn, learner.predict):
                with pytest.raises(ShapeMismatch):
                    method(wide)


def test_a_row_of_weight_0_is_counted_and_nothing_else(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            batch = stream(spec, N)
            learner = learned(spec, batch)
            before, samples = content(learner, counts=False), learner.samples
            row = relabelled(batch[:5], batch.labels[:5], np.zeros(5))
            out = learner.learn(row)
            assert (
                np.all(np.isfinite(out.scores)) and not out.updated.any() and not out.rejected.any()
            )
            assert learner.samples == samples + 5
            assert content(learner, counts=False) == before
            positive = learned(spec, batch.take(batch.weights > 0.0))
            assert content(positive, counts=False) == before


def test_huge_rows_are_learned_or_rejected_without_a_trace(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            batch = rescaled(stream(spec, N), range(3, N, 7), 1e100)
            assert_rejected_leave_no_trace(spec, batch)


def test_tiny_rows_are_learned_or_rejected_without_a_trace(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            for factor in (1e-100, 1e-200, 1e-300):
                batch = rescaled(stream(spec, N), range(3, N, 7), factor)
                assert_rejected_leave_no_trace(spec, batch)


def test_rows_of_every_size_are_learned_or_rejected_without_a_trace(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            batch = stream(spec, N)
            for i, factor in enumerate((1e-300, 1e-100, 1e-30, 1e30, 1e100)):
                batch = rescaled(batch, range(i, N, 6), factor)
            sizes = np.where(
                np.arange(N) % 4 == 1, 1e100, np.where(np.arange(N) % 4 == 2, 1e-100, 1.0)
            )
            assert_rejected_leave_no_trace(spec, relabelled(batch, batch.labels, sizes))


def grown_bytes(learner: Learner, batch: Batch) -> int:
    """Bytes that this process allocates and keeps while it learns a batch ten times."""
    tracemalloc.start()
    try:
        learner.learn(batch)
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10):
            learner.learn(batch)
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_rows_learned(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            learner, batch = make_learner(spec), stream(spec, MANY // 20)
            for _ in range(10):
                learner.learn(batch)
            size = len(content(learner))
            # Threads of earlier tests may allocate memory, too. A leak is there each time.
            assert any(grown_bytes(learner, batch) < GROWTH for _ in range(3))
            assert len(content(learner)) < 1.5 * size
            assert_finite(learner)


def test_metrics_count_what_was_learned(subtests):
    for spec in SPECS.values():
        with subtests.test(spec=spec):
            learner, batch = make_learner(spec), rescaled(stream(spec, N), range(3, N, 7), 1e100)
            whole, by_row = make_progressive(learner.spec), make_progressive(learner.spec)
            out = learner.learn(batch)
            whole.update(batch.labels, out.scores, out.losses, ~out.rejected)
            for i in range(N):
                row = slice(i, i + 1)
                by_row.update(
                    batch.labels[row], out.scores[row], out.losses[row], ~out.rejected[row], i + 1
                )
            assert dump(by_row.state(), {}) == dump(whole.state(), {})
            assert whole.summary()["rows"] == np.count_nonzero(~out.rejected)
            assert np.isfinite(whole.summary()["since_start"]["loss"])
