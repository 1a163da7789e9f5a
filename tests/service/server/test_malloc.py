"""What a process keeps of its memory."""

import ctypes
import resource

import numpy as np
import pytest

from dualstream.service.models.sizeof import bytes_before_rows, bytes_of
from dualstream.service.server.malloc import keep_freed_blocks
from dualstream.solvers import make_learner, resolve_spec
from dualstream.solvers.rows.shared_ones import shared_ones


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not the GNU C library")
def test_blocks_of_bodies_are_not_asked_of_the_kernel_again():
    keep_freed_blocks()

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        blocks = [b"1" * 1_000_000 for _ in range(3)]
        del blocks
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before

    faults()
    again = sum(faults() for _ in range(10))
    assert again < 10 * 3 * 1_000_000 / 4096 / 4, "a quarter of their pages"


@pytest.mark.parametrize(
    "spec",
    [
        {"algorithm": "dual_ascent", "scaling": "balanced", "norm": "running"},
        {"algorithm": "fobos"},
        {"algorithm": "portfolio", "members": "twelve"},
        {"algorithm": "portfolio", "members": [{"algorithm": "sgd"}, {"algorithm": "rda"}]},
        {"task": "multiclass", "algorithm": "passive_aggressive"},
        {"algorithm": "sgd", "map": {"kind": "fourier", "components": 20}},
        {"task": "regression", "algorithm": "semiparametric", "basis": ["constant"]},
    ],
)
def test_what_a_wide_learner_takes_is_shown_without_one(spec, monkeypatch):
    for features in ({"kind": "indexed", "dim": 70_001}, {"kind": "hashed", "bits": 16}):
        if features["kind"] == "hashed" and not {"map", "basis"}.isdisjoint(spec):
            continue
        resolved = resolve_spec(spec | {"features": features})
        got, is_so = bytes_before_rows(resolved), bytes_of(make_learner(resolved))
        assert got == pytest.approx(is_so, rel=0.02, abs=5000)


def test_tables_of_a_history_count_before_the_first_row():
    spec = {"algorithm": "sgd", "columns": {"types": {"card": "category"}}}
    history = [{"by": "card", "stats": "count", "half_life": 10, "keys": 600_000}]
    plain, more = (
        bytes_before_rows(resolve_spec(spec | one)) for one in ({}, {"history": history})
    )
    assert more - plain == 800_000 * 24


def test_ones_that_all_share_take_nothing_of_anybody():
    mine = bytes_of(np.ones(3000))
    assert bytes_of([shared_ones(3000), shared_ones(3000)[5:]]) < 500 < 24_000 < mine
