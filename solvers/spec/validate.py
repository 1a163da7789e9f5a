"""Validates a model specification and writes its defaults out: the resolved specification."""

from collections.abc import Mapping
from typing import Any

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.evaluation.decisions.spec import ALERT_RATE, read_decisions
from dualstream.solvers.evaluation.guard.spec import FIELD as _GUARD, read_guard
from dualstream.solvers.evaluation.intervals.spec import read_intervals
from dualstream.solvers.evaluation.segments.spec import read_segments
from dualstream.solvers.features.spec import read_features, read_map, read_scaling
from dualstream.solvers.history.spec import FIELD as _HISTORY, column_names, read_history
from dualstream.solvers.offline.options import read_refit_options
from dualstream.solvers.offline.refit_methods import refit_methods, why_not_method, why_not_refit
from dualstream.solvers.portfolio.spec import read_pairs
from dualstream.solvers.rows.columns.spec import (
    age_features,
    name_of,
    parts_of,
    read_columns,
    read_crosses,
)
from dualstream.solvers.rows.hashing import hash_names
from dualstream.solvers.spec.algorithms import ALGORITHMS
from dualstream.solvers.spec.violations import with_all_violations
from dualstream.solvers.spec_fields import (
    COSTS,
    INTERVALS,
    SEGMENTS,
    Spec,
    read_choice,
    read_flag,
    read_whole,
    refuse_unknown,
)
from dualstream.wire.text_values import nfc

# Fields of every model: in a resolved specification they come before the algorithm's own fields ...
_FIRST = ("algorithm", "task")
# ... and after them: for a learner behind stages, and for one with its own stages.
_LAST = ("features", "map", "scaling", "norm", "intercept", "seed", "labels")
_LAST_OF_OWN_STAGES = ("features", "labels")
SPEC_VERSION = 1
"""The rules that a model learns by. A resolved specification names them, so a later release can
learn a stored model by the rules that it was created with."""

# A specification with only these fields is of a portfolio by default; with fields that a portfolio
# does not have, it is of dual ascent.
_OF_ANY_PORTFOLIO = (
    *("task", "labels", "features", "members", "memory", "eta", "share", "retain", "lags"),
    *("number_pairs", _GUARD),
)


_OF_ROWS = (
    *("columns", "crosses", "pairs", _HISTORY, INTERVALS, SEGMENTS, COSTS, ALERT_RATE),
    "spec_version",
)
"""Fields that are not of the learner."""
_TWO_LABELS = "two different strings, [negative, positive]"


def resolve_spec(spec: Mapping[str, Any]) -> Spec:
    """The same specification with every default written out, in a fixed order.

    Raises InvalidSpec with the field, its value and the allowed values, and all `violations`.
    """
    if not isinstance(spec, Mapping):
        raise InvalidSpec("", spec, "an object")
    try:
        return _resolve(spec)
    except InvalidSpec as first:
        raise with_all_violations(first, spec, _resolve) from None


def _resolve(spec: Mapping[str, Any]) -> Spec:
    version = read_whole(spec, "", "spec_version", SPEC_VERSION, SPEC_VERSION, SPEC_VERSION)
    fields = {name: value for name, value in spec.items() if name not in _OF_ROWS}
    resolved = resolve_model(fields, _OF_ROWS)
    labels = resolved.get("labels")
    if labels and nfc(labels[0]) == nfc(labels[1]):
        raise InvalidSpec("/labels", labels, f"{_TWO_LABELS}, also when composed (NFC)")
    intervals = read_intervals(spec)
    rows = _rows(spec, resolved) | ({} if intervals is None else {INTERVALS: intervals})
    decisions = read_decisions(spec, resolved)
    return resolved | rows | decisions | {"spec_version": version}


def _rows(spec: Mapping[str, Any], model: Spec) -> Spec:
    """The fields of how rows are read, if they are given. Learners do not use them."""
    columns = read_columns(spec)
    crosses = read_crosses(spec, columns)
    history = read_history(spec, columns)
    pairs = read_pairs(spec, columns, crosses, model)
    segments = read_segments(spec, columns)
    if columns is None:
        return {}
    if model["features"]["kind"] != "hashed":
        raise InvalidSpec("/columns", spec["columns"], "left out unless the features are hashed")
    rows: Spec = {"columns": columns, "crosses": crosses, **pairs}
    rows |= {} if history is None else {_HISTORY: history}
    rows |= {} if segments is None else {SEGMENTS: segments}
    _check_ages(rows, model)
    return rows


def _check_ages(rows: Spec, model: Spec) -> None:
    """Raise InvalidSpec if a feature that is known by its name has the index of an age.

    The number at this index is taken for a time.
    """
    ages = age_features(rows)
    if not ages:
        return
    types, bits = rows["columns"]["types"], model["features"]["bits"]
    names = [name for name, kind in types.items() if name_of(kind) in ("number", "boolean")]
    names += [
        f"{name}.{part}.{end}"
        for name, kind in types.items()
        for part in parts_of(kind)
        for end in ("sin", "cos")
    ]
    names += [*column_names(rows.get(_HISTORY, ()), model["task"]), *ages]
    owners: dict[int, str] = {}
    for name, index in zip(names, hash_names(names, bits).tolist(), strict=True):
        other = owners.setdefault(index, name)
        if other != name and name in ages:
            allowed = f"another number: {other} and {name} have the same hash, and that is a time"
            raise InvalidSpec("/features/bits", bits, allowed)


def resolve_model(spec: Mapping[str, Any], others: tuple[str, ...] = ()) -> Spec:
    """As `resolve_spec`, for one model or one member of a portfolio.

    The error of an unknown field also names `others`, which the caller reads.
    """
    is_portfolio = "members" in spec or all(name in _OF_ANY_PORTFOLIO for name in spec)
    choice = "portfolio" if is_portfolio else "dual_ascent"
    algorithm = read_choice(spec, "algorithm", choice, tuple(ALGORITHMS))
    stages_are_own = ALGORITHMS[algorithm].stages_are_own
    last = _LAST_OF_OWN_STAGES if stages_are_own else _LAST
    fields = (*_FIRST, *ALGORITHMS[algorithm].fields, *last)
    if others and "algorithm" not in spec and "members" not in fields:
        others = ("members", *others)
    refuse_unknown(spec, "", (*fields, _GUARD, *others))
    task = read_choice(spec, "task", "binary", ("binary", "regression", "multiclass"))
    guard = read_guard(spec, algorithm, task)
    features = read_features(spec)
    resolver = (resolve_model,) if ALGORITHMS[algorithm].has_members else ()
    read = ALGORITHMS[algorithm].read(dict(spec) | {"features": features}, task, *resolver)
    resolved = read | {
        "algorithm": algorithm,
        "task": task,
        "features": features,
        "labels": _labels(spec, task),
    }
    if not stages_are_own:
        resolved |= {
            "map": read_map(spec, features),
            "scaling": read_scaling(spec),
            "norm": read_choice(spec, "norm", "none", ("none", "row", "running")),
            "intercept": _intercept(spec, read),
            "seed": read_whole(spec, "", "seed", 0, 0, 2**63 - 1),
        }
    resolved = {name: resolved[name] for name in fields if name in resolved}
    if resolved.get("refit") is not None:
        refit = resolved["refit"]
        refit["method"] = _refit_method(resolved)
        if "options" in refit:
            refit["options"] = read_refit_options(
                resolved, refit["method"], refit["options"], "/refit/options"
            )
    # The guard watches a served model; its learner does not use it.
    return resolved | ({} if guard is None else {_GUARD: guard})


def _refit_method(resolved: Spec) -> str:
    """The method of automatic refits."""
    if (why_not := why_not_refit(resolved)) is not None:
        raise InvalidSpec("/refit", resolved["refit"], f"left out, as {why_not}")
    methods, method = refit_methods(resolved), resolved["refit"]["method"]
    if not method:
        return methods[0]
    if (why_not := why_not_method(resolved, method)) is not None:
        raise InvalidSpec("/refit/method", method, f"one of {', '.join(methods)}, as {why_not}")
    return str(method)


def _intercept(spec: Mapping[str, Any], read: Spec) -> bool | str:
    """Whether there is one, or "prior"; `read`: the fields of the algorithm."""
    if spec.get("intercept") != "prior":
        return read_flag(spec, "intercept", True)
    algorithm = spec.get("algorithm", "dual_ascent")
    is_other = algorithm == "dual_ascent" and read["regularizer"] != "l2"
    has_prior = algorithm in ("dual_ascent", "sgd", "spg", "rda") and not is_other
    if not has_prior or read["loss"] != "logistic":
        allowed = (
            "true or false; prior is for sgd, spg, rda, and dual_ascent with l2, and loss logistic"
        )
        raise InvalidSpec("/intercept", "prior", allowed)
    if spec.get("task") == "regression":
        raise InvalidSpec("/intercept", "prior", "true or false for regression")
    return "prior"


def _labels(spec: Mapping[str, Any], task: str) -> list[str] | None:
    labels = spec.get("labels")
    if labels is None:
        return None
    allowed = _TWO_LABELS
    if task != "binary":
        raise InvalidSpec("/labels", labels, "left out unless the task is binary")
    if not isinstance(labels, list | tuple) or len(labels) != 2 or labels[0] == labels[1]:
        raise InvalidSpec("/labels", labels, allowed)
    if not all(isinstance(label, str) for label in labels):
        raise InvalidSpec("/labels", labels, allowed)
    return list(labels)
