"""POST /specs/resolve: validate a specification and fill in its defaults."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from dualstream.service.api.common import registry_of, spec_of
from dualstream.service.api.spec_schema import EXAMPLE_SPEC
from dualstream.solvers import InvalidSpec, resolve_spec
from dualstream.wire.problems import shortened

router = APIRouter(prefix="/specs", tags=["models"])


class WrongField(BaseModel):
    """A validation error of a specification."""

    pointer: str = Field(description="JSON pointer of the field.")
    reason: str


class ResolvedSpec(BaseModel):
    """A specification with all defaults, or its errors."""

    spec: dict[str, Any] | None = Field(description="The specification with all defaults.")
    errors: list[WrongField]


@router.post(
    "/resolve",
    openapi_extra={
        "requestBody": {
            "content": {"application/json": {"schema": {"type": "object"}, "example": EXAMPLE_SPEC}}
        }
    },
)
async def resolve(request: Request) -> ResolvedSpec:
    """Validate a spec as `PUT /models/{id}` does and fill in defaults. Creates no model."""
    given = await spec_of(request, registry_of(request).settings.max_body_bytes)
    try:
        return ResolvedSpec(spec=resolve_spec(given), errors=[])
    except InvalidSpec as error:
        wrong = WrongField(pointer=shortened(error.field), reason=shortened(str(error)))
        return ResolvedSpec(spec=None, errors=[wrong])
