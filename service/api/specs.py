"""Model specifications: their JSON schema, and POST /specs/resolve."""

from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from dualstream.service.api.common import registry_of, spec_of
from dualstream.service.api.views import answer
from dualstream.service.http.openapi import returns
from dualstream.solvers import InvalidSpec, resolve_spec
from dualstream.solvers.rows.batch import MAX_DIM
from dualstream.solvers.rows.hashing import MAX_BITS
from dualstream.solvers.spec import cost
from dualstream.solvers.spec.algorithms import ALGORITHMS
from dualstream.wire.problem_json import shortened
from dualstream.wire.responses import about

router = APIRouter(prefix="/specs", tags=["models"])

EXAMPLE_SPEC = {
    "algorithm": "dual_ascent",
    "loss": "hinge",
    "window": {"kind": "exponential", "beta": 0.9998},
    "features": {"kind": "indexed", "dim": 123},
}
_OF_EVERY = (
    "algorithm",
    "task",
    "features",
    "map",
    "scaling",
    "norm",
    "intercept",
    "seed",
    "labels",
)
_OF_ROWS = ("columns", "crosses", "pairs", "history")
_OF_FEATURES = ("alert_rate", "costs", "guard", "intervals", "segments")
_FIELDS = sorted(
    {*_OF_EVERY, *_OF_ROWS, *_OF_FEATURES}.union(*(one.fields for one in ALGORITHMS.values()))
)


def _features(kind: str, size: str, maximum: int) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["kind"] if kind == "hashed" else ["kind", size],
        "properties": {
            "kind": {"const": kind},
            size: {"type": "integer", "minimum": 1, "maximum": maximum},
        },
        "additionalProperties": False,
    }


# Necessary, not sufficient: the schema does not check ranges and combinations of fields, which
# POST /specs/resolve does. docs/reference/specification.md has the fields.
SPEC: dict[str, Any] = {
    "type": "object",
    "properties": {name: {} for name in _FIELDS}
    | {
        "algorithm": {"enum": sorted(ALGORITHMS)},
        "task": {"enum": ["binary", "regression", "multiclass"]},
        "features": {
            "anyOf": [
                {"const": "hashed"},
                _features("hashed", "bits", MAX_BITS),
                _features("indexed", "dim", MAX_DIM),
            ]
        },
        "norm": {"enum": ["none", "row", "running"]},
        "intercept": {"anyOf": [{"type": "boolean"}, {"const": "prior"}]},
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


class WrongField(Struct):
    """A validation error of a specification."""

    pointer: Annotated[str, about("JSON pointer of the field.")]
    reason: str


class ResolvedSpec(Struct):
    """A specification with all defaults, or its errors."""

    spec: Annotated[dict[str, Any] | None, about("The specification with all defaults.")]
    errors: list[WrongField]


@router.post(
    "/resolve",
    responses={200: returns(ResolvedSpec)},
    openapi_extra={
        "requestBody": {
            "content": {"application/json": {"schema": {"type": "object"}, "example": EXAMPLE_SPEC}}
        }
    },
)
async def resolve(request: Request) -> Response:
    """Validate a spec as `PUT /models/{id}` does and fill in defaults. Creates no model."""
    registry = registry_of(request)
    requested = await spec_of(request, registry.settings.max_body_bytes)
    try:
        spec = resolve_spec(requested)
        registry.deps.features.check_spec(spec)
        cost.check_cost(spec)
    except InvalidSpec as error:
        wrong = [WrongField(shortened(one.field), shortened(str(one))) for one in error.violations]
        return answer(ResolvedSpec(None, wrong))
    return answer(ResolvedSpec(spec, []))
