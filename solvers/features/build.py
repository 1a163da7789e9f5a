"""Builds the learner of a resolved specification with feature stages."""

from collections.abc import Callable, Mapping
from typing import Any

from dualstream.solvers.features.fourier import Fourier
from dualstream.solvers.features.landmarks import Landmarks, LandmarksMulticlass
from dualstream.solvers.features.norm import Norm
from dualstream.solvers.features.nystroem import Nystroem
from dualstream.solvers.features.pipeline import Staged, StagedMulticlass
from dualstream.solvers.features.scaling import Balanced
from dualstream.solvers.features.stage import Stage
from dualstream.solvers.features.wrapper import Wrapped
from dualstream.solvers.online.multiclass import Multiclass
from dualstream.solvers.online.rewind import Rewind
from dualstream.solvers.protocols.learner import Learner
from dualstream.solvers.rows.intercept import width_of
from dualstream.solvers.spec_cache import FixedSpec, derived_once
from dualstream.solvers.spec_fields import Spec

_NO_STAGES: Spec = {"map": None, "scaling": "none", "norm": "none"}


def make_staged(spec: Spec, make_core: Callable[[Spec], Learner]) -> Learner:
    """The learner of `spec` behind its stages."""
    width, mapping, core = width_of(spec["features"]), spec["map"], _core_of(spec)
    front: dict[str, Stage] = {}
    if spec["scaling"] != "none":
        scaling = spec["scaling"]
        front["scaling"] = Balanced(width, scaling["power"], scaling["moments"])
    if mapping is None:
        return _staged(spec, front | _norm(spec), make_core(core))
    components, gamma = mapping["components"], mapping["gamma"]
    if mapping["kind"] == "fourier":
        fourier = Fourier(width, components, gamma, mapping["seed"])
        return _staged(spec, front | {"map": fourier} | _norm(spec), make_core(core))
    nystroem = Nystroem(width, components, gamma)

    def make_mapped() -> Wrapped:
        return _staged(spec, {"map": nystroem} | _norm(spec), make_core(core))

    blank = make_core(core)
    kind = LandmarksMulticlass if isinstance(blank, Multiclass) else Landmarks
    landmarks = kind(spec, nystroem, make_mapped, blank)
    if not front:
        return landmarks
    if isinstance(landmarks, LandmarksMulticlass):
        return StagedMulticlass(spec, front, landmarks, landmarks)
    return Staged(spec, front, landmarks, landmarks)


@derived_once
def _core_of(spec: Mapping[str, Any]) -> FixedSpec:
    """The specification of the learner behind the stages."""
    mapped = spec["map"]
    features = spec["features"]
    if mapped is not None:
        features = {"kind": "indexed", "dim": mapped["components"]}
    return FixedSpec({**spec, **_NO_STAGES, "features": features})


def _norm(spec: Spec) -> dict[str, Stage]:
    return {} if spec["norm"] == "none" else {"norm": Norm(running=spec["norm"] == "running")}


def _staged(spec: Spec, stages: dict[str, Stage], learner: Learner) -> Wrapped:
    if isinstance(learner, Multiclass):
        return StagedMulticlass(spec, stages, learner, learner)
    return Staged(spec, stages, learner, Rewind(learner, row_is_whole=True))
