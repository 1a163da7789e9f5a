"""Specification fields of the learners of this package."""

from collections.abc import Mapping
from typing import Any

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.rows.batch import MAX_DIM
from dualstream.solvers.rows.intercept import width_of
from dualstream.solvers.spec_fields import Spec, read_choice, read_number, read_whole

MAX_WINDOW = 1_000_000
MAX_UNITS = 256
MAX_LAGS = 16
MAX_COLUMNS = 128
"""As in dense_columns.py, whose import compiles kernels."""
CELLS: Mapping[str, int] = {"standard": 2**21, "large": 2**23}
"""Columns times rows of the ring of boosted trees, a byte each, for each `memory`."""
ROW_BYTES = 24
"""Bytes of a row of the ring besides its cells and its leaf in each tree."""
DEFAULT_WINDOW = MAX_CLASS_ROWS = 16_384
"""The default window, and the longest ring for several classes."""


def ring_columns(used: int) -> int:
    """Columns of a ring that has room for `used`: a multiple of 8."""
    return max(8, -(-used // 8) * 8)


def most_rows(memory: str, columns: int) -> int:
    """Rows that the ring of boosted trees can hold of this many columns."""
    return CELLS[memory] // columns


def widest_ring(features: Mapping[str, Any], lags: int = 0) -> int:
    """Columns of the ring of a stream that has all of these features."""
    return ring_columns(min(width_of(features) + lags, MAX_COLUMNS))


def longest_window(features: Mapping[str, Any], memory: str, lags: int = 0) -> int:
    """The largest `window` of boosted trees on a stream that has all of these features."""
    return min(MAX_WINDOW, most_rows(memory, widest_ring(features, lags)))


def _read_window(spec: Mapping[str, Any], task: str, memory: str, lags: int) -> int:
    """The `window` of boosted trees. Raises InvalidSpec for more rows than the ring can hold."""
    features = spec["features"]
    most = longest_window(features, memory, lags)
    default = min(DEFAULT_WINDOW, most)
    reason = f"as many rows as fit in memory of {width_of(features)} features"
    if features["kind"] == "hashed":
        # The stream may have few features.
        most = min(MAX_WINDOW, most_rows(memory, ring_columns(1)))
        reason = "as many rows as fit in memory"
    if task == "multiclass":
        most, reason = min(most, MAX_CLASS_ROWS), "as the task is multiclass"
    window = spec.get("window", default)
    is_whole = isinstance(window, int) and not isinstance(window, bool)
    if is_whole and window > most:
        raise InvalidSpec("/window", window, f"a whole number in [32, {most}], {reason}")
    return read_whole({"window": window}, "", "window", None, 32, most)


def read_memory(spec: Mapping[str, Any]) -> Spec:
    """The field `memory`, written out only if it is not the default."""
    memory = read_choice(spec, "memory", "standard", tuple(CELLS))
    return {} if memory == "standard" else {"memory": memory}


def read_boosted(spec: Mapping[str, Any], task: str) -> Spec:
    """The fields of `algorithm: boosted`, see boosted.py."""
    step = read_number(spec, "", "step", 0.3, 1e-6, 1.0, "a number in [1e-6, 1]")
    if "loss" in spec and task != "regression":
        raise InvalidSpec("/loss", spec["loss"], "left out unless the task is regression")
    loss = read_choice(spec, "loss", "squared", ("squared", "absolute"))
    lags = read_lags(spec, task, 0)
    memory = read_memory(spec)
    # The squared loss is that of every nonlinear learner, and is not written out.
    return ({"loss": loss} if loss == "absolute" else {}) | {
        "window": _read_window(spec, task, memory.get("memory", "standard"), lags),
        **memory,
        "trees": read_whole(spec, "", "trees", 30, 1, 1000),
        "renewal": read_whole(spec, "", "renewal", 60, 1, 1000),
        "step": step,
        "leaves": read_whole(spec, "", "leaves", 31, 2, 127),
        "seed": read_whole(spec, "", "seed", 0, 0, 2**63 - 1),
        **({"lags": lags} if lags else {}),
    }


def read_lags(spec: Mapping[str, Any], task: str, default: int) -> int:
    """The field `lags`, see lags.py; 0 for classes."""
    if task != "regression":
        if spec.get("lags"):
            raise InvalidSpec("/lags", spec["lags"], "left out unless the task is regression")
        return 0
    most = min(MAX_LAGS, MAX_DIM - width_of(spec["features"]))
    return read_whole(spec, "", "lags", min(default, most), 0, most)


def lag_name(spec: Mapping[str, Any], feature: int) -> str | None:
    """The name of a feature that is a past target of a resolved specification; None for others.

    Members of a portfolio can have more past targets than it has itself.
    """
    at = feature - width_of(spec["features"])
    if "lags" not in spec or not 0 <= at < MAX_LAGS:
        return None
    return f"label.{at}-label.{at + 1}" if at else "label.1"


def read_net(spec: Mapping[str, Any], task: str) -> Spec:
    """The fields of `algorithm: net`, see net.py."""
    units = spec.get("units", [32, 16])
    is_pair = isinstance(units, list | tuple) and len(units) == 2
    if not is_pair or any(type(n) is not int or not 1 <= n <= MAX_UNITS for n in units):
        allowed = f"a list of two whole numbers in [1, {MAX_UNITS}]"
        raise InvalidSpec("/units", units, allowed)
    return {
        "units": list(units),
        "step": read_number(spec, "", "step", 0.1, 1e-6, 10.0, "a number in [1e-6, 10]"),
        "seed": read_whole(spec, "", "seed", 0, 0, 2**63 - 1),
    }


def read_neighbours(spec: Mapping[str, Any], task: str) -> Spec:
    """The fields of `algorithm: neighbours`, see neighbours.py."""
    return {
        "window": read_whole(spec, "", "window", 1000, 16, 10_000),
        "neighbours": read_whole(spec, "", "neighbours", 15, 1, 100),
    }


def read_splines(spec: Mapping[str, Any], task: str) -> Spec:
    """The fields of `algorithm: splines`, see splines.py."""
    return {"gamma": read_number(spec, "", "gamma", 0.99, 0.0, 1.0, "a number in [0, 1]")}
