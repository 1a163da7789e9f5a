"""The specification fields `costs` and `alert_rate`."""

from collections.abc import Mapping
from typing import Any

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.evaluation.make_progressive import scores_are_log_odds
from dualstream.solvers.spec_fields import COSTS, Spec, read_number, refuse_unknown

ALERT_RATE = "alert_rate"
MISTAKES = ("false_positive", "false_negative")
MAX_COSTS = 10_000
"""Maximum number of costs of a multiclass model."""
_LARGEST = 1e12
_COST = "a number in [0, 1e12]"


def read_decisions(spec: Mapping[str, Any], model: Spec) -> Spec:
    """The fields that are given, with every default; `model` is the resolved specification.

    Raises InvalidSpec.
    """
    fields: Spec = {}
    if spec.get(COSTS) is not None:
        fields[COSTS] = _read_costs(spec[COSTS], model)
    if spec.get(ALERT_RATE) is not None:
        fields[ALERT_RATE] = _read_rate(spec, model["task"])
    return fields


def _read_rate(spec: Mapping[str, Any], task: str) -> float:
    rate = spec[ALERT_RATE]
    if task != "binary":
        raise InvalidSpec(f"/{ALERT_RATE}", rate, "left out unless the task is binary")
    allowed = "a number above 0 and below 1, such as 0.001 for one row in a thousand"
    rate = read_number(spec, "", ALERT_RATE, 0.0, 0.0, 1.0, allowed)
    if not 0.0 < rate < 1.0:
        raise InvalidSpec(f"/{ALERT_RATE}", rate, allowed)
    return rate


def _read_costs(costs: Any, model: Spec) -> Spec:
    if model["task"] == "regression":
        raise InvalidSpec(f"/{COSTS}", costs, "left out, as a regression decides nothing")
    if not scores_are_log_odds(model):
        allowed = "left out, or given with the loss logistic, whose scores give probabilities"
        raise InvalidSpec(f"/{COSTS}", costs, allowed)
    if model["task"] == "binary":
        return _of_mistakes(costs)
    return _of_classes(costs)


def _of_mistakes(costs: Any) -> Spec:
    if not isinstance(costs, Mapping):
        allowed = "an object with false_positive, false_negative or both"
        raise InvalidSpec(f"/{COSTS}", costs, allowed)
    refuse_unknown(costs, f"/{COSTS}", MISTAKES)
    resolved = {name: _read_cost(costs.get(name, 1.0), f"/{COSTS}/{name}") for name in MISTAKES}
    if not any(resolved.values()):
        raise InvalidSpec(f"/{COSTS}", costs, "at least one number above 0")
    return resolved


def _of_classes(costs: Any) -> Spec:
    allowed = 'an object of objects: {"true class": {"predicted class": cost}}'
    if not isinstance(costs, Mapping) or not costs:
        raise InvalidSpec(f"/{COSTS}", costs, allowed)
    resolved: Spec = {}
    for label, row in costs.items():
        owner = f"/{COSTS}/{_step(label)}"
        if not isinstance(row, Mapping) or not row:
            raise InvalidSpec(owner, row, 'an object: {"predicted class": cost}')
        if label in row:
            allowed = "left out, as a right prediction costs nothing"
            raise InvalidSpec(f"{owner}/{_step(label)}", row[label], allowed)
        resolved[label] = {
            name: _read_cost(cost, f"{owner}/{_step(name)}") for name, cost in row.items()
        }
    count = sum(map(len, resolved.values()))
    if count > MAX_COSTS:
        raise InvalidSpec(f"/{COSTS}", count, f"at most {MAX_COSTS:,} costs")
    if not any(cost for row in resolved.values() for cost in row.values()):
        raise InvalidSpec(f"/{COSTS}", costs, "at least one number above 0")
    return resolved


def _read_cost(cost: Any, field: str) -> float:
    owner, _, name = field.rpartition("/")
    return read_number({name: cost}, owner, name, 1.0, 0.0, _LARGEST, _COST)


def _step(name: str) -> str:
    """A class as a step of a JSON pointer (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")
