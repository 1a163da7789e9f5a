"""The same model under other windows: each is what a model of that window alone would be."""

import numpy as np
import pytest

from solvers import (
    Batch,
    InvalidSpec,
    Progressive,
    dump,
    make_learner,
    resolve_spec,
    why_not_unlearn,
)

FEATURES = {"kind": "indexed", "dim": 4}
SERVED = {"loss": "hinge", "features": FEATURES}


def rows(n=300, seed=3):
    random = np.random.default_rng(seed)
    return Batch.from_dense(random.standard_normal((n, 4)), random.choice([-1.0, 1.0], n))


def run(spec, batch, cuts=()):
    learner = make_learner(spec)
    progress = Progressive.of(learner.spec)
    edges = [0, *cuts, len(batch)]
    for a, b in zip(edges, edges[1:], strict=False):
        progress.count(batch[a:b], learner.learn(batch[a:b]), a + 1)
    return learner, progress


@pytest.mark.parametrize("window", ["infinite", {"kind": "exponential", "beta": 0.99}, "sliding"])
def test_each_window_has_the_metrics_of_a_model_of_its_own(window):
    batch = rows()
    spec = SERVED | {"window": window, "map": {"kind": "fourier", "components": 8}}
    learner, progress = run(spec | {"compare_windows": True}, batch)
    alone, plain = run(spec, batch)
    # The model itself does not know of the others.
    assert dump(learner.state(), {}) == dump(alone.state(), {})
    told = progress.summary()
    for one in told["windows"]:
        kind = window if isinstance(window, str) else window["kind"]
        assert one["served"] == (one["window"] == kind)
        own = plain if one["served"] else run(spec | {"window": one["window"]}, batch)[1]
        for view in ("rows", "since_start", "rolling"):
            assert one[view] == own.summary()[view], one["window"]
    assert [one["window"] for one in told["windows"]] == ["infinite", "exponential", "sliding"]
    losses = {one["since_start"]["loss"] for one in told["windows"]}
    assert len(losses) > 1


def test_a_window_that_forgets_wins_where_the_world_turns():
    n = 9000
    random = np.random.default_rng(0)
    x = random.standard_normal((n, 4))
    y = np.sign(x[:, 0]) * np.where(np.arange(n) < n - 2100, 1.0, -1.0)
    _, progress = run(SERVED | {"compare_windows": True}, Batch.from_dense(x, y))
    rolling = {one["window"]: one["rolling"]["error_rate"] for one in progress.summary()["windows"]}
    assert rolling["sliding"] < 0.5 * rolling["infinite"]


def test_cuts_and_restarts_leave_no_trace():
    batch, spec = rows(), SERVED | {"compare_windows": True}
    whole, parts = run(spec, batch)[1], run(spec, batch, (1, 2, 150))[1]
    assert dump(whole.state(), {}) == dump(parts.state(), {})
    learner, first = run(spec, batch[:100])
    again = Progressive.of(learner.spec)
    again.restore(first.state())
    again.count(batch[100:], learner.learn(batch[100:]), 101)
    assert dump(again.state(), {}) == dump(whole.state(), {})


def test_classes_are_compared_too():
    random = np.random.default_rng(5)
    places, x = random.integers(0, 3, 120), random.standard_normal((120, 4))
    batch = Batch.from_dense(x).with_labels(places.astype(float), ("1", "2", "3"))
    spec = {"task": "multiclass", "algorithm": "dual_ascent", "features": FEATURES}
    _, progress = run(spec | {"compare_windows": True}, batch)
    told = progress.summary()["windows"]
    _, sliding = run(spec | {"window": "sliding"}, batch)
    assert told[2]["since_start"] == sliding.summary()["since_start"]


def test_what_has_no_window_is_refused():
    for spec in ({"algorithm": "sgd"}, {"algorithm": "portfolio"}):
        with pytest.raises(InvalidSpec, match="no window"):
            resolve_spec({"features": FEATURES, "compare_windows": True} | spec)
    member = {"loss": "hinge", "compare_windows": True}
    with pytest.raises(InvalidSpec, match="compared anyway"):
        resolve_spec({"algorithm": "portfolio", "members": [member]})
    with pytest.raises(InvalidSpec, match="true or false"):
        resolve_spec(SERVED | {"compare_windows": 1})


def test_it_is_written_out_only_where_it_is_on():
    assert "compare_windows" not in resolve_spec(SERVED | {"compare_windows": False})
    spec = resolve_spec(SERVED | {"compare_windows": True})
    assert spec["compare_windows"] is True and resolve_spec(spec) == spec
    assert "other models" in why_not_unlearn(spec)
