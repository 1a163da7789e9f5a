"""Specifications: every default written out, and refusals that name field, value and range."""

import json
import math
from typing import Any

import numpy as np
import pytest

from dualstream.solvers import InvalidSpec, make_learner, resolve_spec
from dualstream.solvers.losses.loss_table import LOSSES, MARGIN_LOSSES
from dualstream.solvers.offline.refit_methods import why_not_refit
from dualstream.solvers.portfolio.presets import PRESETS, members_of
from dualstream.solvers.rows.hashing import hash_names
from dualstream.solvers.spec.algorithms import ALGORITHMS
from dualstream.solvers.spec_cache import FixedSpec

FEATURES = {"kind": "indexed", "dim": 5}
DEFAULT = {
    "algorithm": "dual_ascent",
    "task": "binary",
    "loss": "logistic",
    "regularizer": "l2",
    "rho": 0.001,
    "window": "infinite",
    "average": None,
    "replay": {"steps": 0},
    "retain": 1000,
    "features": FEATURES,
    "map": None,
    "scaling": "none",
    "norm": "none",
    "intercept": True,
    "seed": 0,
    "labels": None,
    "spec_version": 1,
}


def resolved(**fields):
    return resolve_spec({"algorithm": "dual_ascent", "features": FEATURES} | fields)


def test_every_default_is_written_out_in_one_order():
    spec = resolve_spec({"algorithm": "dual_ascent", "features": FEATURES})
    assert spec == DEFAULT
    shuffled = dict(reversed(DEFAULT.items()))
    assert json.dumps(resolve_spec(shuffled)) == json.dumps(spec)


def test_a_resolved_specification_resolves_to_itself():
    fields = {
        "loss": {"kind": "huber"},
        "task": "regression",
        "window": "sliding",
        "average": {},
        "features": FEATURES,
    }
    once = resolve_spec(fields)
    assert resolve_spec(once) == once
    assert once["loss"] == {"kind": "huber", "delta": 1.0}
    assert once["window"] == {"kind": "sliding", "length": 2000}
    assert once["average"] == {"kappa": 0.9995}
    assert once["retain"] == 2000


@pytest.mark.parametrize(
    ("field", "short", "full"),
    [
        ("window", "exponential", {"kind": "exponential", "beta": 0.9998}),
        ("window", {"kind": "infinite"}, "infinite"),
        ("loss", "smooth_hinge", {"kind": "smooth_hinge", "gamma": 1.0}),
        ("loss", "quantile", {"kind": "quantile", "tau": 0.5}),
        ("loss", "epsilon_insensitive", {"kind": "epsilon_insensitive", "epsilon": 0.1}),
        ("loss", {"kind": "hinge"}, "hinge"),
        ("features", {"kind": "indexed", "dim": 7}, {"kind": "indexed", "dim": 7}),
        ("regularizer", {"kind": "l2"}, "l2"),
        ("rho", 1, 1.0),
    ],
)
def test_short_and_full_forms_are_the_same(field, short, full):
    assert resolved(**{field: short})[field] == full
    assert resolved(**{field: full})[field] == full


@pytest.mark.parametrize("loss", LOSSES)
def test_averaging_is_on_for_losses_with_a_kink(loss):
    task = "binary" if loss in MARGIN_LOSSES else "regression"
    kinked = loss in ("hinge", "absolute", "quantile", "epsilon_insensitive")
    assert resolved(loss=loss, task=task)["average"] == ({"kappa": 0.9995} if kinked else None)
    assert resolved(loss=loss, task=task, average=None)["average"] is None


def test_boosted_trees_name_their_loss_only_where_it_is_absolute():
    """Members of stored states, which have no such field, stay resolved."""
    trees = {"algorithm": "boosted", "task": "regression"}
    assert resolve_spec(trees) == resolve_spec(trees | {"loss": "squared"})
    assert "loss" not in resolve_spec(trees)
    assert resolve_spec(trees | {"loss": "absolute"})["loss"] == "absolute"
    with pytest.raises(InvalidSpec, match="loss must be one of squared, absolute"):
        resolve_spec(trees | {"loss": "huber"})
    with pytest.raises(InvalidSpec, match="loss must be left out unless the task is regression"):
        resolve_spec({"algorithm": "boosted", "loss": "logistic"})


def test_a_window_beyond_memory_is_refused():
    trees = {"algorithm": "boosted", "features": {"kind": "indexed", "dim": 54}}
    most = 2**21 // 56
    assert resolve_spec(trees | {"window": most})["window"] == most
    with pytest.raises(InvalidSpec, match=rf"window must be .* \[32, {most}\], .* 54 features"):
        resolve_spec(trees | {"window": most + 1})
    large = trees | {"memory": "large"}
    assert resolve_spec(large | {"window": 4 * most})["memory"] == "large"
    with pytest.raises(InvalidSpec, match="window must be"):
        resolve_spec(large | {"window": 4 * most + 1})
    assert "memory" not in resolve_spec(trees | {"memory": "standard"})
    with pytest.raises(InvalidSpec, match="as the task is multiclass"):
        resolve_spec(trees | {"task": "multiclass", "window": 20_000})
    with pytest.raises(InvalidSpec, match="window must be"):
        resolve_spec(
            {"features": trees["features"], "members": [{"algorithm": "boosted", "window": 10**6}]}
        )


def test_only_full_has_a_large_memory():
    features = {"kind": "indexed", "dim": 10}
    whole = resolve_spec({"memory": "large", "features": features})
    assert (whole["algorithm"], whole["members"], whole["memory"]) == ("portfolio", "full", "large")
    assert resolve_spec(whole) == whole and "memory" not in resolve_spec({"features": features})
    names = [one["name"] for one in members_of(whole)]
    assert names[-2:] == ["boosted-65536", "stack"] and len(names) == 1 + len(PRESETS["full"])
    large = members_of(whole)[-2]
    body = {name: value for name, value in large.items() if name != "name"}
    assert body.items() <= resolve_spec({**body, "features": features}).items()
    for members in ("fast", [{"kind": "prior"}]):
        with pytest.raises(InvalidSpec, match="memory must be left out unless members is full"):
            resolve_spec({"memory": "large", "members": members})
    with pytest.raises(InvalidSpec, match="memory must be one of standard, large"):
        resolve_spec({"memory": "huge"})


def test_regression_starts_from_squared_loss():
    assert resolved(task="regression")["loss"] == "squared"


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_without_margins_know_both_tasks(loss):
    make_learner({"features": FEATURES, "loss": loss})
    if loss in MARGIN_LOSSES:
        with pytest.raises(InvalidSpec, match="loss must be one of squared, absolute"):
            resolved(loss=loss, task="regression")
    else:
        resolved(loss=loss, task="regression")


@pytest.mark.parametrize(
    ("fields", "field", "message"),
    [
        ({"window": {"kind": "exponential", "beta": 2}}, "/window/beta",
         "window.beta must be a number in (0, 1], got 2"),
        ({"window": {"kind": "exponential", "beta": 0}}, "/window/beta",
         "window.beta must be a number in (0, 1], got 0"),
        ({"window": {"kind": "exponential", "beta": True}}, "/window/beta",
         "window.beta must be a number in (0, 1], got True"),
        ({"window": {"kind": "exponential", "length": 3}}, "/window/length",
         "'length' is not a known field: window takes kind, beta"),
        ({"window": {"kind": "sliding", "length": 0}}, "/window/length",
         "window.length must be a whole number in [1, 10000000], got 0"),
        ({"window": {"kind": "sliding", "length": 5.0}}, "/window/length",
         "window.length must be a whole number in [1, 10000000], got 5.0"),
        ({"window": {"kind": "sliding", "length": 500}, "retain": 499}, "/retain",
         "retain must be a whole number in [500, 10000000], got 499"),
        ({"window": {"beta": 0.5}}, "/window",
         "window must be a name or an object with kind, one of infinite, exponential, sliding, "
         "got {'beta': 0.5}"),
        ({"window": "tumbling"}, "/window",
         "window must be one of infinite, exponential, sliding, got 'tumbling'"),
        ({"window": None}, "/window",
         "window must be a name or an object with kind, one of infinite, exponential, sliding, "
         "got None"),
        ({"rho": 0}, "/rho", "rho must be a number in [1e-12, 1e12], got 0"),
        ({"rho": "0.1"}, "/rho", "rho must be a number in [1e-12, 1e12], got '0.1'"),
        ({"rho": math.nan}, "/rho", "rho must be a number in [1e-12, 1e12], got nan"),
        ({"rho": 10**400}, "/rho", None),
        ({"rho": None}, "/rho", "rho must be a number in [1e-12, 1e12], got None"),
        ({"average": {"kappa": 1.5}}, "/average/kappa",
         "average.kappa must be a number in [0, 1], got 1.5"),
        ({"average": True}, "/average",
         "average must be null or an object with kappa, got True"),
        ({"average": {"kind": "x"}}, "/average/kind",
         "'kind' is not a known field: average takes kappa"),
        ({"loss": {"kind": "smooth_hinge", "gamma": 0}}, "/loss/gamma",
         "loss.gamma must be a number in [1e-12, 1e12], got 0"),
        ({"loss": {"kind": "quantile", "tau": 1}}, "/loss/tau",
         "loss.tau must be a number in [1e-12, 1 - 1e-12], got 1"),
        ({"loss": {"kind": "epsilon_insensitive", "epsilon": -1}}, "/loss/epsilon",
         "loss.epsilon must be a number in [0, 1e12], got -1"),
        ({"loss": {"kind": "hinge", "gamma": 1}}, "/loss/gamma",
         "'gamma' is not a known field: loss takes kind"),
        ({"loss": "zero_one"}, "/loss", None),
        ({"loss": {"kind": ["hinge"]}}, "/loss/kind", None),
        ({"features": {"kind": "indexed"}}, "/features/dim",
         "features.dim must be a whole number in [1, 2147483646], got None"),
        ({"features": {"kind": "indexed", "dim": 2**31 - 1}}, "/features/dim", None),
        ({"features": {"kind": "indexed", "dim": True}}, "/features/dim", None),
        ({"features": {"kind": "dense"}}, "/features/kind", None),
        ({"retain": 0}, "/retain", "retain must be a whole number in [1, 10000000], got 0"),
        ({"intercept": 1}, "/intercept", "intercept must be true or false, got 1"),
        ({"seed": -1}, "/seed", None),
        ({"task": "ranking"}, "/task",
         "task must be one of binary, regression, multiclass, got 'ranking'"),
        ({"algorithm": "adam"}, "/algorithm",
         f"algorithm must be one of {', '.join(ALGORITHMS)}, got 'adam'"),
        ({"labels": ["a", "a"]}, "/labels",
         "labels must be two different strings, [negative, positive], got ['a', 'a']"),
        ({"labels": ["a", 1]}, "/labels", None),
        ({"labels": ["a"]}, "/labels", None),
        ({"labels": ["a", "b"], "task": "regression"}, "/labels",
         "labels must be left out unless the task is binary, got ['a', 'b']"),
        ({"replay": None}, "/replay", "replay must be an object with steps or until_gap, got None"),
        ({"replay": {"steps": -1}}, "/replay/steps", None),
        ({"replay": {"every": 5}}, "/replay/every",
         "replay.every must be left out without until_gap, got 5"),
        ({"replay": {"until_gap": 0.1, "steps": 1}}, "/replay/steps",
         "replay.steps must be left out if until_gap is given, got 1"),
        ({"strength": 0}, "/strength", "strength must be a number in [1e-12, 1e12], got 0"),
        ({"strength": 3, "rho": 0.1}, "/strength",
         "strength must be left out if rho is given, got 3"),
        ({"regularizer": {"kind": "elastic_net", "delta": -1}}, "/regularizer/delta",
         "regularizer.delta must be a number in [0, 1e12], got -1"),
        ({"regularizer": {"kind": "entropy", "delta": 1}}, "/regularizer/delta", None),
        ({"tau": 3}, "/tau", None),
        ({"C": 1.0}, "/C", None),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_with_its_value_and_range(fields, field, message):
    with pytest.raises(InvalidSpec) as caught:
        resolved(**fields)
    assert type(caught.value) is InvalidSpec
    assert caught.value.field == field
    if message is not None:
        assert str(caught.value) == message
    assert len(str(caught.value)) < 400


def test_a_replay_until_a_gap_has_defaults():
    assert resolved(replay={"until_gap": 0.1})["replay"] == {
        "until_gap": 0.1,
        "max_steps": 8,
        "every": 100,
    }


def test_strength_replaces_rho():
    assert resolved(strength=30)["strength"] == 30.0
    assert "rho" not in resolved(strength=30)
    assert "strength" not in resolved(strength=None)


def test_a_specification_with_members_is_of_a_portfolio():
    with pytest.raises(InvalidSpec, match="'colour' is not a known field: it takes .*members"):
        resolve_spec({"members": "fast", "colour": 1})


@pytest.mark.parametrize("name", ["columns", "history", "intervals", "costs", "members"])
def test_a_misspelt_field_that_no_learner_has_is_known(name):
    misspelt = name[:-1] + "x"
    with pytest.raises(InvalidSpec, match=f"it takes .*; did you mean '{name}'"):
        resolve_spec({misspelt: 1})
    with pytest.raises(InvalidSpec, match="members.0: ") as of_member:
        resolve_spec({"members": [{"algorithm": "sgd", misspelt: 1}]})
    assert f"mean '{name}'" not in str(of_member.value)


def test_the_fields_that_an_algorithm_takes_are_named():
    with pytest.raises(InvalidSpec) as caught:
        resolved(surrogate="pil1")
    takes = str(caught.value).split(": it takes ")[1].split(", ")
    assert set(takes) >= {
        "algorithm",
        "loss",
        "window",
        "features",
        *ALGORITHMS["dual_ascent"].fields,
    }


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"task": "multiclass"},
        {"labels": ["no", "yes"]},
        {"features": FEATURES},
        {"features": "hashed", "retain": 50},
        {"retain": 50, "guard": "warn", "spec_version": 1},
    ],
)
def test_what_names_no_field_of_one_learner_is_a_portfolio(given):
    spec = resolve_spec(given)
    assert spec["algorithm"] == "portfolio"
    assert spec["members"] == "full"
    features = FEATURES if given.get("features") is FEATURES else {"kind": "hashed", "bits": 18}
    assert spec["features"] == features
    assert resolve_spec(spec) == spec


@pytest.mark.parametrize("spec", [None, [], "hinge", 3])
def test_a_specification_is_an_object(spec):
    with pytest.raises(InvalidSpec, match="the spec must be an object"):
        resolve_spec(spec)


def test_labels_are_kept():
    assert resolved(labels=["ham", "spam"])["labels"] == ["ham", "spam"]


def test_a_learner_carries_its_resolved_specification():
    assert make_learner({"algorithm": "dual_ascent", "features": FEATURES}).spec == DEFAULT


def test_resolving_changes_nothing_of_what_is_given():
    fields = {"features": {"kind": "indexed", "dim": 5}, "window": {"kind": "sliding"}}
    copy = json.loads(json.dumps(fields))
    resolve_spec(fields)
    assert fields == copy


def test_what_follows_from_a_fixed_specification_is_worked_out_once():
    fields = {"algorithm": "dual_ascent", "loss": "hinge", "features": FEATURES}
    spec = FixedSpec(resolve_spec(fields))
    one, other = make_learner(spec), make_learner(spec)
    assert one is not other
    assert one.spec is other.spec
    assert one.spec == make_learner(fields).spec == resolve_spec(fields)
    assert json.loads(json.dumps(spec)) == spec
    assert why_not_refit(spec) == why_not_refit(dict(spec))
    for _ in range(2):  # refusals are not cached
        with pytest.raises(InvalidSpec):
            make_learner(FixedSpec({"algorithm": "none"}))


def test_windows_are_compared_by_a_portfolio():
    members = [{"window": "infinite"}, {"window": "exponential"}, {"window": "sliding"}]
    for member in members:
        member |= {"name": member["window"], "algorithm": "dual_ascent", "retain": 2000}
    resolved = resolve_spec({"algorithm": "portfolio", "members": members})
    kinds = [member["window"] for member in resolved["members"]]
    assert [kind if isinstance(kind, str) else kind["kind"] for kind in kinds] == [
        "infinite", "exponential", "sliding",
    ]  # fmt: skip


def test_a_declared_feature_has_another_index_than_an_age():
    names = [f"x{n}" for n in range(5000)]
    (age,) = hash_names(["at.age"], 10)
    (taken, *_) = [names[at] for at in np.flatnonzero(hash_names(names, 10) == age)]
    at = {"kind": "time", "parts": ["hour", "age"]}

    def resolved(types: dict[str, Any], bits: int = 10) -> Any:
        features = {"kind": "hashed", "bits": bits}
        return resolve_spec({"features": features, "columns": {"types": {"at": at} | types}})

    with pytest.raises(InvalidSpec, match=f"{taken} and at.age have the same hash") as caught:
        resolved({taken: "number"})
    assert caught.value.field == "/features/bits"
    assert resolved({taken: "number"}, bits=18) and resolved({taken: "category"})
