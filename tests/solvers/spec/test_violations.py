"""All violations of a specification are listed at once; `features` has a default."""

import random

import pytest

from dualstream.solvers import InvalidSpec, resolve_spec
from dualstream.solvers.spec.algorithms import ALGORITHMS


def violations(spec):
    with pytest.raises(InvalidSpec) as caught:
        resolve_spec(spec)
    result = caught.value.violations
    assert result[0].field == caught.value.field and str(result[0]) == str(caught.value)
    return [one.field for one in result]


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"semiparametric"}))
def test_features_are_hashed_by_default(algorithm):
    hashed = {"kind": "hashed", "bits": 18}
    resolved = resolve_spec({"algorithm": algorithm})
    assert resolved["features"] == hashed
    assert resolve_spec(resolved) == resolved


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        (
            {"algorithm": "sgd", "rho": -1, "seed": -5, "foo": 1, "bar": 2, "norm": "x"},
            ["/foo", "/bar", "/rho", "/norm", "/seed"],
        ),
        # What an unknown algorithm makes of its fields cannot be judged, the others can.
        ({"algorithm": "sgdd", "rho": -1, "seed": -5, "foo": 1}, ["/algorithm", "/foo", "/seed"]),
        (
            {"algorithm": "sgd", "task": "x", "rho": -1, "loss": "squared", "labels": ["a", "b"]},
            ["/task", "/rho"],
        ),
        (
            {"columns": {"unknown": "refuse"}, "crosses": [["a", "b"]], "algorithm": "sgd"},
            ["/crosses/0/0"],
        ),
        (
            {"features": {"kind": "indexed"}, "map": "fourier", "seed": "a"},
            ["/features/dim", "/seed"],
        ),
        (
            {"features": {"kind": "x", "dim": 3}, "map": "fourier", "retain": 0},
            ["/features/kind", "/retain"],
        ),
        ({"features": 3, "scaling": "x", "intercept": 1}, ["/features", "/scaling", "/intercept"]),
        (
            {
                "window": {"kind": "exponential", "beta": 7, "gamma": 1},
                "loss": {"kind": "smooth_hinge", "gamma": -1},
                "features": {"kind": "hashed", "bits": 99},
            },
            ["/features/bits", "/loss/gamma", "/window/gamma", "/window/beta"],
        ),
        (
            {
                "members": [
                    {"kind": "nope"},
                    {"algorithm": "sgd", "rho": -1, "seed": -2},
                    3,
                    {"name": "", "loss": "x", "schedule": "z"},
                    {"name": "a"},
                    {"name": "a", "retain": 0},
                ],
                "eta": 9,
            },
            [
                "/members/0/kind",
                "/members/1/rho",
                "/members/1/seed",
                "/members/2",
                "/members/3/name",
                "/members/3/loss",
                "/members/3/schedule",
                "/members/5/name",
                "/members/5/retain",
                "/eta",
            ],
        ),
        (
            {"spec_version": 9, "guard": {"mode": "x"}, "share": 9},
            ["/spec_version", "/guard/mode", "/share"],
        ),
        (
            {"algorithm": "semiparametric", "gamma": -1, "C": -1},
            ["/task", "/features", "/gamma", "/C"],
        ),
        ({"labels": ["a", "a"], "task": "binary", "seed": -1}, ["/labels", "/seed"]),
    ],
)
def test_all_violations_are_listed_in_one_answer(spec, fields):
    assert sorted(violations(spec)) == sorted(fields)


# Each breaks one field of a model of dual_ascent, whatever the others are.
FAULTS = {
    "/rho": {"rho": -1},
    "/seed": {"seed": -1},
    "/retain": {"retain": 0},
    "/norm": {"norm": "x"},
    "/scaling/power": {"scaling": {"kind": "balanced", "power": 2}},
    "/intercept": {"intercept": "yes"},
    "/loss": {"loss": "x"},
    "/window/beta": {"window": {"kind": "exponential", "beta": 0}},
    "/average/kappa": {"average": {"kappa": 2}},
    "/features/bits": {"features": {"kind": "hashed", "bits": 0}},
    "/unknown": {"unknown": None},
    "/labels": {"labels": ["a"]},
    "/guard": {"guard": 3},
    "/spec_version": {"spec_version": 0},
    "/map": {"map": 1},
    "/history": {"history": [3]},
}


def test_any_set_of_faults_is_found_whole():
    rng = random.Random(7)
    for _ in range(300):
        chosen = rng.sample(sorted(FAULTS), rng.randint(1, len(FAULTS)))
        spec = {"algorithm": "dual_ascent"}
        for field in chosen:
            spec |= FAULTS[field]
        kept = dict(spec)
        assert sorted(violations(spec)) == sorted(chosen)
        assert spec == kept


def test_long_specifications_take_little_work():
    assert len(violations({f"f{k}": k for k in range(5000)})) == 100
    assert len(violations({f"f{k}": k for k in range(50_000)})) == 100
    member = {"algorithm": "dual_ascent", "seed": -1, "loss": "x"}
    fields = violations({"members": [member] * 64})
    assert len(fields) == 100 and len(set(fields)) == 100
    deep = spec = {}
    for _ in range(500):
        deep["window"] = deep = {}
    assert violations(spec)[0].startswith("/window")
