"""JSON schema of a model specification.

Necessary, not sufficient: the schema does not check ranges and combinations of fields, which
POST /specs/resolve does. docs/reference/specification.md has the fields.
"""

from typing import Any

from dualstream.solvers.core.batch import MAX_DIM
from dualstream.solvers.core.hashing import MAX_BITS
from dualstream.solvers.spec.algorithms import ALGORITHMS

EXAMPLE_SPEC = {
    "algorithm": "dual_ascent",
    "loss": "hinge",
    "window": {"kind": "exponential", "beta": 0.9998},
    "features": {"kind": "indexed", "dim": 123},
}
_OF_EVERY = ("algorithm", "task", "features", "map", "scaling", "norm", "intercept", "seed")
_FIELDS = sorted(
    {*_OF_EVERY, "labels", "guard"}.union(*(one.fields for one in ALGORITHMS.values()))
)
_HASHED = {
    "type": "object",
    "required": ["kind"],
    "properties": {
        "kind": {"const": "hashed"},
        "bits": {"type": "integer", "minimum": 1, "maximum": MAX_BITS},
    },
    "additionalProperties": False,
}
_INDEXED = {
    "type": "object",
    "required": ["kind", "dim"],
    "properties": {
        "kind": {"const": "indexed"},
        "dim": {"type": "integer", "minimum": 1, "maximum": MAX_DIM},
    },
    "additionalProperties": False,
}
SPEC: dict[str, Any] = {
    "type": "object",
    "properties": {name: {} for name in _FIELDS}
    | {
        "algorithm": {"enum": sorted(ALGORITHMS)},
        "task": {"enum": ["binary", "regression", "multiclass"]},
        "features": {"anyOf": [{"const": "hashed"}, _HASHED, _INDEXED]},
        "norm": {"enum": ["none", "row", "running"]},
        "intercept": {"type": "boolean"},
        "seed": {"type": "integer", "minimum": 0, "maximum": 2**63 - 1},
    },
    "additionalProperties": False,
}
SPEC_EXAMPLES: dict[str, Any] = {
    "default portfolio": {},
    "numbered features": EXAMPLE_SPEC,
    "named features": {"algorithm": "dual_ascent", "features": {"kind": "hashed", "bits": 10}},
    "portfolio on numbered features": {
        "members": "eight",
        "features": {"kind": "indexed", "dim": 3},
    },
}
