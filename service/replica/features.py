"""ReplicaFeature: what an optional feature of the server adds to a model's replica."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplicaFeature:
    """The part of a feature that replicas know."""

    name: str
