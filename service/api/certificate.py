"""GET /models/{id}/certificate: duality gap of the served weights on their window."""

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from dualstream.service.api.common import registry_of
from dualstream.service.api.views import NULL_REASON, Finite, MaybeStale, has_null, staleness
from dualstream.service.jobs.reference_optimum import References
from dualstream.service.models.model import Model
from dualstream.solvers import Certificate, RefitError, why_no_reference
from dualstream.wire.problems import Problem

router = APIRouter(prefix="/models", tags=["models"])


class ReferenceView(BaseModel):
    """Optimum of the retained rows, and the distance of the served weights from it."""

    seq: int = Field(description="Log position of the window.")
    lower_bound: Finite = Field(description="Lower bound: no weights have a smaller objective.")
    objective: Finite = Field(description="Objective of the best weights found.")
    served: Finite = Field(description="Objective of the served weights.")
    gap: Finite = Field(description="served - lower_bound, never negative.")
    rows: int = Field(description="Retained rows of the window.")
    regret: Finite = Field(
        description="Sum of the losses of the window's rows when they were served, minus the sum"
        " of their losses at the best weights found."
    )
    regret_rows: int = Field(
        description="Number of last rows in the sum: those whose served loss is known."
    )
    epochs: int
    converged: bool = Field(
        description="Whether the relative gap of bound and objective is at most 1e-4."
    )


class CertificateView(MaybeStale):
    """Primal, dual and their gap. Certifies optimisation, not generalisation.

    A number beyond the range of a float is null, and `reason` says why.
    """

    model: str
    member: str | None = Field(None, description="Name of the member, if the request has one.")
    seq: int
    primal: Finite = Field(description="Regularised loss of the served weights.")
    dual: Finite = Field(description="Lower bound: no weights have a smaller loss.")
    gap: Finite = Field(description="primal - dual, never negative.")
    relative_gap: Finite = Field(description="gap over the larger of |primal| and |dual|.")
    rows: int = Field(description="Retained rows in the computation of the gap.")
    weight_share: Finite = Field(description="Their share of the window's total weight.")
    estimate: bool = Field(
        description="False if the gap covers all rows of the window, as for sliding windows."
    )
    reason: str | None = Field(None, description="Why a number is null; absent if none is.")
    reference: ReferenceView | None = Field(None, description="With `reference=true`.")


@router.get(
    "/{model_id}/certificate", response_model=CertificateView, response_model_exclude_unset=True
)
async def read_certificate(
    model_id: str,
    request: Request,
    member: Annotated[str | None, Query(description="Certificate of this member.")] = None,
    reference: Annotated[bool, Query(description="Also solve the retained rows.")] = False,
) -> CertificateView:
    """Certificate of the current state."""
    model = await registry_of(request).get(model_id)
    extra: dict[str, Any] = {"reference": await _reference(model, member)} if reference else {}
    replica = model.replica

    def read() -> tuple[Certificate | None, int]:
        if member is None:
            return replica.certified(), replica.seq
        return model.members().member_certificate(member), replica.seq

    certificate, seq = await replica.view(read)
    owner = replica.spec["algorithm"] if member is None else f"member {member!r}"
    if certificate is None:
        reason = f"{owner} has no dual problem, so it has no certificate"
        if member is None and replica.member_certificates:
            known = ", ".join(replica.member_certificates)
            reason += f"; set `member` to one of: {known}"
        raise Problem(404, "no-certificate", reason)
    numbers = asdict(certificate)
    if any(has_null(view) for view in (numbers, *(part.model_dump() for part in extra.values()))):
        extra |= {"reason": NULL_REASON}
    return CertificateView(
        model=model_id, member=member, seq=seq, **numbers, **extra, **staleness(model)
    )


async def _reference(model: Model, member: str | None) -> ReferenceView:
    """Raises Problem 404 if the model has no reference."""
    why_not = why_no_reference(model.replica.spec)
    if member is not None:
        why_not = "a member has no reference of its own"
    if why_not is not None:
        raise Problem(404, "no-reference", f"model {model.record.id!r} has no reference: {why_not}")
    try:
        found = await model.job(References).find()
    except RefitError as error:
        raise Problem(404, "no-reference", str(error)) from None
    return ReferenceView(
        seq=found.place.seq,
        lower_bound=found.lower,
        objective=found.objective,
        served=found.served,
        gap=found.gap,
        rows=found.rows,
        regret=found.regret,
        regret_rows=found.regret_rows,
        epochs=found.epochs,
        converged=found.converged,
    )
