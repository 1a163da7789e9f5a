"""From a resolved specification with stages to its learner."""

from collections.abc import Callable

from solvers.features.intercept import width_of
from solvers.features.norm import Norm
from solvers.features.scaling import Balanced
from solvers.features.stage import Stage
from solvers.features.staged import Staged, StagedMulticlass
from solvers.learner import Learner
from solvers.multiclass import Multiclass
from solvers.rewind import Rewind
from solvers.spec_fields import Spec

_NO_STAGES: Spec = {"map": None, "scaling": "none", "norm": "none"}


def make_staged(spec: Spec, make_core: Callable[[Spec], Learner]) -> Learner:
    """The stages that `spec` names in front of the learner that it names."""
    stages: dict[str, Stage] = {}
    scaling, norm = spec["scaling"], spec["norm"]
    width = width_of(spec["features"])
    if scaling != "none":
        stages["scaling"] = Balanced(width, scaling["power"], scaling["moments"])
    if norm != "none":
        stages["norm"] = Norm(running=norm == "running")
    core = make_core(spec | _NO_STAGES)
    if isinstance(core, Multiclass):
        return StagedMulticlass(spec, stages, core)
    return Staged(spec, stages, core, Rewind(core, row_is_whole=True))
