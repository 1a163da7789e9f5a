"""The losses that rows had as they were served: the last ones, however they came."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dualstream.service.replica.retained_rows import ServedLosses
from dualstream.solvers import Batch, CorruptState, Outcome, resolve_spec


def spec_of(retain: int, **more):
    given = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 1}} | more
    return resolve_spec(given | {"retain": retain})


pieces = st.lists(st.lists(st.sampled_from(["in", "rejected", "weightless"]), max_size=90))


@given(pieces, st.sampled_from([1, 7, 64, 100, 200]))
@settings(max_examples=60, deadline=None)
def test_the_last_ones_that_entered_are_known(pieces, retain):
    kept, slow, n = ServedLosses(spec_of(retain)), [], 0
    for piece in pieces:
        losses = np.arange(n, n + len(piece), dtype=np.float64)
        n += len(piece)
        rejected = np.array([kind == "rejected" for kind in piece], np.bool_)
        weights = np.array([float(kind != "weightless") for kind in piece])
        rows = Batch.from_dense(np.ones((len(piece), 1)), np.ones(len(piece)), weights)
        kept.keep(rows, Outcome(losses, losses, ~rejected, rejected))
        slow += [x for x, kind in zip(losses, piece, strict=True) if kind == "in"]
        slow = slow[-retain:]
        assert len(kept) == len(slow) and kept.last(len(kept)).tolist() == slow
        assert kept.last(len(slow) // 2).tolist() == slow[len(slow) - len(slow) // 2 :]
        twin = ServedLosses(spec_of(retain))
        twin.restore(kept.state())
        assert twin.last(len(twin)).tolist() == slow
    kept.forget()
    assert len(kept) == 0 and kept.state()["losses"].size == 0


def test_a_model_without_a_window_keeps_none():
    kept = ServedLosses(resolve_spec({"algorithm": "sgd", "features": "hashed"}))
    rows = Batch.from_dense([[1.0]], [1.0])
    kept.keep(rows, Outcome(*[np.ones(1)] * 2, *[np.zeros(1, np.bool_)] * 2))
    assert len(kept) == 0 and kept.state() == {}
    with pytest.raises(CorruptState, match="shape"):
        kept.restore({"losses": np.zeros((2, 2))})
