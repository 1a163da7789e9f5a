"""ReplicaFeature: what an optional feature of the server adds to a model's replica.

The features are handed down from `create_app` to every replica: the same spec and journal give the
same state only with the same features. Replicas, models and codecs know none of them by name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dualstream.service.journal.record import Control
from dualstream.service.replica.controls import Kind, copy_named_by
from dualstream.service.replica.parts import Parts, StatePart
from dualstream.solvers import InvalidSpec

FEATURE_FIELDS = {
    "alert_rate": "decisions",
    "costs": "decisions",
    "guard": "guard",
    "history": "history",
    "intervals": "intervals",
    "refit": "refits",
    "segments": "segments",
}
"""Fields of a specification, and the features without which they are refused."""


def _no_part(spec: Mapping[str, Any]) -> StatePart | None:
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplicaFeature:
    """The share of replicas in a feature."""

    name: str
    part: Callable[[Mapping[str, Any]], StatePart | None] = _no_part
    """Makes the part of a new model of a specification. None: the model has none."""
    controls: Sequence[Kind] = ()


class Features:
    """The features of a process, as the tables that replicas use."""

    def __init__(self, features: Sequence[ReplicaFeature]) -> None:
        self._names = {feature.name for feature in features}
        self._parts = [feature.part for feature in features]
        controls = [kind for feature in features for kind in feature.controls]
        self.kinds = {kind.fields.kind: kind for kind in controls}
        """Kinds of controls by name."""
        assert len(self.kinds) == len(controls)

    def check_spec(self, spec: Mapping[str, Any]) -> None:
        """Raise InvalidSpec for a field that no installed feature reads."""
        for field, name in FEATURE_FIELDS.items():
            if spec.get(field) is not None and name not in self._names:
                allowed = f"left out, as this server lacks the feature {name!r}"
                raise InvalidSpec(f"/{field}", spec[field], allowed)

    def parts(self, spec: Mapping[str, Any]) -> Parts:
        """The parts of a new model of this specification."""
        parts = [make(spec) for make in self._parts]
        return Parts(part for part in parts if part is not None)

    def needs_own_run(self, control: Control) -> bool:
        """Must all earlier records be applied before this control is prepared?

        A rollback must be alone: feature names belong to the state before or after it, and a copy
        that cannot be fetched stops the replica right before it.
        """
        kind = self.kinds.get(control.kind)
        return copy_named_by(control) is not None or (kind is not None and kind.is_alone)

    def is_of_its_spec(self, control: Control) -> bool:
        """Does the control depend on the model's own spec?"""
        kind = self.kinds.get(control.kind)
        return copy_named_by(control) is not None or (kind is not None and kind.is_of_its_spec)
