"""The specification field `guard`."""

from collections.abc import Mapping
from typing import Any

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.spec_fields import Spec, read_choice, read_number, read_object, read_whole

FIELD = "guard"
MODES = ("off", "warn", "pause")
QUANTITIES = ("loss", "norm")
"""Watched quantities, indexed by the number of a trip."""

_DEFAULT_TIMES = {"loss": 2.0, "norm": 10.0}
_FIELDS = ("mode", *QUANTITIES, "deviations", "every", "patience", "history", "after")
_ALLOWED = f"one of {', '.join(MODES)}, or an object with mode"


def read_guard(spec: Mapping[str, Any], algorithm: str, task: str) -> Spec | None:
    """The guard with every default written out; None if it is off or missing.

    A string is short for an object with only that mode. Raises InvalidSpec.
    """
    field = spec.get(FIELD, "off")
    if isinstance(field, str):
        field = {"mode": read_choice({FIELD: field}, FIELD, "off", MODES)}
    guard = read_object(field, f"/{FIELD}", _FIELDS, _ALLOWED)
    mode = guard.get("mode")
    if not isinstance(mode, str) or mode not in MODES:
        raise InvalidSpec.not_one_of(f"/{FIELD}/mode", mode, MODES)
    every = read_whole(guard, f"/{FIELD}", "every", 100, 1, 100_000)
    fields_read = {
        "mode": mode,
        "loss": _read_times(guard, "loss"),
        "norm": _read_norm(guard, algorithm, task),
        "deviations": _read(guard, "deviations", 4.0, 0.0),
        "every": every,
        "patience": read_whole(guard, f"/{FIELD}", "patience", 2, 1, 1000),
        "history": read_whole(guard, f"/{FIELD}", "history", 100 * every, 2 * every, 10**9),
        "after": read_whole(guard, f"/{FIELD}", "after", 10 * every, 2 * every, 10**9),
    }
    if fields_read["loss"] is None and fields_read["norm"] is None:
        raise InvalidSpec(f"/{FIELD}/loss", None, "a number, because norm is null")
    return None if mode == "off" else fields_read


def _read_times(guard: Mapping[str, Any], name: str) -> float | None:
    """The factor over its history that trips a quantity; null: not watched."""
    if name in guard and guard[name] is None:
        return None
    return _read(guard, name, _DEFAULT_TIMES[name], 1.0)


def _read_norm(guard: Mapping[str, Any], algorithm: str, task: str) -> float | None:
    why_not = None
    if algorithm == "semiparametric":
        why_not = "null: what it serves is a kernel expansion, which its weights are no measure of"
    elif algorithm == "portfolio" and task == "multiclass":
        why_not = "null: each class has members whose weights multiply different inputs"
    if why_not is None:
        return _read_times(guard, "norm")
    if guard.get("norm") is not None:
        raise InvalidSpec(f"/{FIELD}/norm", guard["norm"], why_not)
    return None


def _read(guard: Mapping[str, Any], name: str, default: float, least: float) -> float:
    allowed = f"a number in [{least:g}, 1e6]"
    return read_number(guard, f"/{FIELD}", name, default, least, 1e6, allowed)
