"""Specification fields of the feature stages."""

from collections.abc import Mapping
from typing import Any

from dualstream.solvers.errors import InvalidSpec
from dualstream.solvers.rows.batch import MAX_DIM
from dualstream.solvers.rows.hashing import MAX_BITS
from dualstream.solvers.spec_fields import Spec, read_kind, read_number, read_whole

MAX_MAPPED_DIM = 2**24
MAX_COMPONENTS = 2**16
MAX_FREQUENCIES = 2**26
"""Maximum of dim x components: 512 MiB of frequencies."""
MAX_LANDMARKS = 2048


def has_stages(spec: Mapping[str, Any]) -> bool:
    """Whether a model of this resolved specification transforms rows before its learner."""
    if "map" not in spec:
        return False
    return spec["map"] is not None or spec["scaling"] != "none" or spec["norm"] != "none"


def read_features(spec: Mapping[str, Any]) -> Spec:
    """`features`: by hashed name (the default), or by index."""
    kinds = {"indexed": ("dim",), "hashed": ("bits",)}
    features = read_kind(spec, "features", "hashed", kinds)
    if features["kind"] == "hashed":
        return features | {"bits": read_whole(features, "/features", "bits", 18, 1, MAX_BITS)}
    return features | {"dim": read_whole(features, "/features", "dim", None, 1, MAX_DIM)}


def read_scaling(spec: Mapping[str, Any]) -> str | Spec:
    """`scaling`: none, or balanced with its parameters."""
    kinds = {"none": (), "balanced": ("power", "moments")}
    scaling = read_kind(spec, "scaling", "none", kinds)
    if scaling["kind"] == "none":
        return "none"
    power = read_number(scaling, "/scaling", "power", 0.25, 0.0, 1.0, "a number in [0, 1]")
    moments = scaling.get("moments", True)
    if not isinstance(moments, bool):
        raise InvalidSpec("/scaling/moments", moments, "true or false")
    return {"kind": "balanced", "power": power, "moments": moments}


def read_map(spec: Mapping[str, Any], features: Mapping[str, Any]) -> Spec | None:
    """`map`: null, random Fourier features or Nystroem landmarks, of indexed features."""
    if spec.get("map") is None:
        return None
    kinds = {"fourier": ("components", "gamma", "seed"), "nystroem": ("components", "gamma")}
    mapping = read_kind(spec, "map", "fourier", kinds)
    if features["kind"] != "indexed":
        raise InvalidSpec("/map", spec["map"], "null if features are hashed")
    dim, most = features["dim"], MAX_LANDMARKS
    if dim > MAX_MAPPED_DIM:
        raise InvalidSpec("/map", spec["map"], f"null if dim is above {MAX_MAPPED_DIM}")
    if mapping["kind"] == "fourier":
        most = min(MAX_COMPONENTS, MAX_FREQUENCIES // dim)
        mapping["seed"] = read_whole(mapping, "/map", "seed", 0, 0, 2**63 - 1)
    mapping["components"] = read_whole(mapping, "/map", "components", min(512, most), 1, most)
    allowed = "a number in [1e-12, 1e12]"
    mapping["gamma"] = read_number(mapping, "/map", "gamma", 1.0 / dim, 1e-12, 1e12, allowed)
    return {name: mapping[name] for name in ("kind", *kinds[mapping["kind"]])}
