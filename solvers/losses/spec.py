"""The fields `loss` and `average` of a specification."""

from collections.abc import Mapping
from typing import Any

from dualstream.solvers.losses.loss_table import LOSSES, MARGIN_LOSSES, NONSMOOTH_LOSSES, PARAMETERS
from dualstream.solvers.spec_fields import Spec, read_kind, read_number, read_object


def read_loss(spec: Mapping[str, Any], task: str) -> Spec:
    """A loss that the task supports, with its parameter."""
    default = "squared" if task == "regression" else "logistic"
    fields = {name: (PARAMETERS[name].name,) if name in PARAMETERS else () for name in LOSSES}
    if task == "regression":
        fields = {name: takes for name, takes in fields.items() if name not in MARGIN_LOSSES}
    loss = read_kind(spec, "loss", default, fields)
    if loss["kind"] in PARAMETERS:
        takes = PARAMETERS[loss["kind"]]
        loss[takes.name] = read_number(
            loss, "/loss", takes.name, takes.default, takes.least, takes.most, takes.allowed
        )
    return loss


def read_average(spec: Mapping[str, Any], loss: str) -> Spec | None:
    """Default: on for losses with a kink, off for the others; null: off."""
    if "average" not in spec:
        return {"kappa": 0.9995} if loss in NONSMOOTH_LOSSES else None
    average = spec["average"]
    if average is None:
        return None
    average = read_object(average, "/average", ("kappa",), "null or an object with kappa")
    return {
        "kappa": read_number(average, "/average", "kappa", 0.9995, 0.0, 1.0, "a number in [0, 1]")
    }
