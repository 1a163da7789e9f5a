"""What a specification means, without making a model of it."""

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from dualstream.service.api.models import catalog_of, spec_of
from dualstream.service.api.spec_schema import EXAMPLE_SPEC
from dualstream.solvers import InvalidSpec, resolve_spec
from dualstream.wire.problems import shortened

router = APIRouter(prefix="/specs", tags=["models"])


class WrongField(BaseModel):
    """What is wrong with a specification."""

    pointer: str = Field(description="JSON pointer of the field.")
    reason: str


class ResolvedSpec(BaseModel):
    """A specification as a model of it would have it, or why there can be none."""

    spec: dict[str, Any] | None = Field(description="With every default written out.")
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
    """Check a spec as `PUT /models/{id}` does, and write its defaults out. Makes no model."""
    given = await spec_of(request, catalog_of(request).settings.max_body_bytes)
    try:
        return ResolvedSpec(spec=resolve_spec(given), errors=[])
    except InvalidSpec as error:
        wrong = WrongField(pointer=shortened(error.field), reason=shortened(str(error)))
        return ResolvedSpec(spec=None, errors=[wrong])
