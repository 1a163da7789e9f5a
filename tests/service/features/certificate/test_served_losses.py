"""The losses that rows had as they were served: the last ones, however they came."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dualstream.service.features.certificate.served_losses import ServedLosses
from dualstream.service.replica.feature_names import FeatureNames
from dualstream.service.replica.state import by_prefix
from dualstream.solvers import Batch, CorruptState, Outcome, resolve_spec
from tests.fuzzing import examples


def spec_of(retain: int, **more):
    inputs = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 1}} | more
    return resolve_spec(inputs | {"retain": retain})


pieces = st.lists(st.lists(st.sampled_from(["in", "rejected", "weightless"]), max_size=90))


@given(pieces, st.sampled_from([1, 7, 64, 100, 200]))
@examples(100)
def test_the_last_ones_that_entered_are_known(pieces, retain):
    kept, slow, n = ServedLosses.of(spec_of(retain)), [], 0
    for piece in pieces:
        losses = np.arange(n, n + len(piece), dtype=np.float64)
        n += len(piece)
        rejected = np.array([kind == "rejected" for kind in piece], np.bool_)
        weights = np.array([float(kind != "weightless") for kind in piece])
        rows = Batch.from_dense(np.ones((len(piece), 1)), np.ones(len(piece)), weights)
        kept.on_learned(rows, Outcome(losses, losses, ~rejected, rejected), 1)
        slow += [x for x, kind in zip(losses, piece, strict=True) if kind == "in"]
        slow = slow[-retain:]
        assert len(kept) == len(slow) and kept.last(len(kept)).tolist() == slow
        assert kept.last(len(slow) // 2).tolist() == slow[len(slow) - len(slow) // 2 :]
        twin = ServedLosses.of(spec_of(retain))
        twin.restore(by_prefix(kept.bookkeeping()), FeatureNames())
        assert twin.last(len(twin)).tolist() == slow
    kept.on_forgotten(n + 1)
    assert len(kept) == 0 and kept.bookkeeping() == {}


def test_a_model_without_a_window_keeps_none():
    assert ServedLosses.of(resolve_spec({"algorithm": "sgd", "features": "hashed"})) is None


def test_damaged_losses_are_refused():
    with pytest.raises(CorruptState, match="shape"):
        ServedLosses(5).restore({"served": {"losses": np.zeros((2, 2))}}, FeatureNames())
