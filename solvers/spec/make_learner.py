"""Makes the learner of a model specification, and compiles kernels ahead of time."""

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dualstream.solvers import jit as _jit
from dualstream.solvers.features.spec import has_stages
from dualstream.solvers.nonlinear import NONLINEAR
from dualstream.solvers.portfolio.presets import shared_algorithms
from dualstream.solvers.portfolio.spec import ModelFactory
from dualstream.solvers.protocols.learner import Learner
from dualstream.solvers.rows.columns.inputs import depends_on_past
from dualstream.solvers.spec.algorithms import ALGORITHMS, Algorithm
from dualstream.solvers.spec.validate import resolve_model, resolve_spec
from dualstream.solvers.spec_cache import FixedSpec, derived_once
from dualstream.solvers.spec_fields import Spec

_RESTARTING = ("portfolio", *NONLINEAR)
"""Algorithms that take scales from the first rows."""


def make_learner(spec: Mapping[str, Any]) -> Learner:
    """A learner without rows. Raises InvalidSpec."""
    return _maker(spec)()


@derived_once
def _maker(spec: Mapping[str, Any]) -> Callable[[], Learner]:
    """Factory of the learners of a specification. Raises InvalidSpec."""
    resolved = FixedSpec(resolve_spec(spec))
    make = _maker_of_staged(resolved)
    module: Any
    if resolved["algorithm"] in _RESTARTING:
        module = importlib.import_module("dualstream.solvers.features.first_rows")
        make = partial(module.make_restarting, resolved, make)
    if depends_on_past(resolved):
        module = importlib.import_module("dualstream.solvers.history.learner")
        make = partial(module.make_with_past, resolved, make)
    return make


def _make_member(spec: Mapping[str, Any]) -> Learner:
    """The learner of a member, whose portfolio starts again with all of them."""
    return _maker_of_staged(FixedSpec(resolve_spec(spec)))()


def _maker_of_staged(resolved: Spec) -> Callable[[], Learner]:
    """Factory of learners without what is in front of the stages."""
    if not has_stages(resolved):
        return _maker_of_core(resolved)
    # Imported on demand, because importing compiles kernels.
    module = importlib.import_module("dualstream.solvers.features.build")
    return partial(module.make_staged, resolved, _make_core)


def _make_core(resolved: Spec) -> Learner:
    """The learner of a specification without stages."""
    return _maker_of_core(resolved)()


def _maker_of_core(resolved: Spec) -> Callable[[], Learner]:
    module: Any
    if shared_algorithms(resolved):
        if resolved["algorithm"] == "portfolio":
            module = importlib.import_module("dualstream.solvers.portfolio.classes")
            models = ModelFactory(resolve_model, _make_member)
            return partial(module.make_classes, resolved, models)
        module = importlib.import_module("dualstream.solvers.nonlinear.multiclass")
        return partial(module.make_multiclass, resolved)
    if resolved["task"] == "multiclass":
        module = importlib.import_module("dualstream.solvers.online.multiclass")
        return partial(module.make_multiclass, resolved, _make_core)
    algorithm = ALGORITHMS[resolved["algorithm"]]
    arguments = (ModelFactory(resolve_model, _make_member),) if algorithm.has_members else ()
    return partial(getattr(_load(algorithm), algorithm.maker), resolved, *arguments)


def warm(*algorithms: str) -> int:
    """Import these algorithms (default: all), which compiles their kernels.

    Returns the number of kernels. Afterwards, no call compiles anything.
    """
    for name in algorithms or ALGORITHMS:
        _load(ALGORITHMS[name])
    for name in (
        "dualstream.solvers.evaluation.class_progressive",
        "dualstream.solvers.evaluation.decisions.alerts",
        "dualstream.solvers.evaluation.late_class_scores",
        "dualstream.solvers.features.build",
        "dualstream.solvers.history.learner",
        "dualstream.solvers.profile",
        "dualstream.solvers.evaluation.guard.monitor",
        "dualstream.solvers.evaluation.intervals.calibration",
        "dualstream.solvers.evaluation.segments.sums",
        "dualstream.solvers.online.class_costs",
        "dualstream.solvers.portfolio.classes",
        "dualstream.solvers.nonlinear.boosted_classes",
        "dualstream.solvers.nonlinear.net_classes",
    ):
        importlib.import_module(name)
    if not algorithms:
        for name in ("refit.window_problem", "refit.weights_problem"):
            importlib.import_module(f"dualstream.solvers.{name}")
        offline = importlib.import_module("dualstream.solvers.offline.method_registry")
        for method in offline.METHODS:
            offline.method_of(method)
    return len(_jit.compiled_signatures())


def _load(algorithm: Algorithm) -> Any:
    return importlib.import_module(algorithm.module)
