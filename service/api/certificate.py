"""The certificate: how far the served weights are from the best ones on their window."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from dualstream.service.api.models import catalog_of
from dualstream.service.api.views import MaybeStale, finite, staleness
from dualstream.service.jobs.reference_optimum import References
from dualstream.service.models.model import Model
from dualstream.solvers import RefitError, why_no_reference
from dualstream.wire.problems import Problem

router = APIRouter(prefix="/models", tags=["models"])


class ReferenceView(BaseModel):
    """The least objective on the retained rows alone, and how far what was served is from it."""

    seq: int = Field(description="Of the window that it is of.")
    lower_bound: float | None = Field(description="No weights have a smaller objective there.")
    objective: float | None = Field(description="Of the best weights that were found.")
    served: float | None = Field(description="Of the weights which the model serves.")
    gap: float | None = Field(description="served - lower_bound, never negative.")
    rows: int = Field(description="Of the window that are retained.")
    regret: float | None = Field(
        description="Sum of the losses that the window's rows had as they were served, less what"
        " these rows have at the best weights found."
    )
    regret_rows: int = Field(description="So many of the last rows, whose served loss is known.")
    epochs: int
    converged: bool = Field(description="Whether lower bound and objective are within 1e-4.")


class CertificateView(MaybeStale):
    """Primal, dual and their gap; it certifies optimisation, not generalisation.

    A number is null where it is too large for a float.
    """

    model: str
    member: str | None = Field(None, description="Whose certificate it is, if one was named.")
    seq: int
    primal: float | None = Field(description="Regularised loss of the served weights.")
    dual: float | None = Field(description="No weights can have a smaller one than this.")
    gap: float | None = Field(description="primal - dual, never negative.")
    relative_gap: float | None = Field(description="gap over the larger of |primal| and |dual|.")
    rows: int = Field(description="Retained rows that the gap was computed on.")
    weight_share: float = Field(description="The share of the window's weight that they carry.")
    estimate: bool = Field(description="Exact for sliding windows, an estimate otherwise.")
    reference: ReferenceView | None = Field(None, description="Where it was asked for.")


@router.get(
    "/{model_id}/certificate", response_model=CertificateView, response_model_exclude_unset=True
)
async def read_certificate(
    model_id: str,
    request: Request,
    member: Annotated[str | None, Query(description="Of this member alone.")] = None,
    reference: Annotated[bool, Query(description="With the optimum of the retained rows.")] = False,
) -> CertificateView:
    """The certificate of the model as it stands."""
    model = await catalog_of(request).get(model_id)
    beside = {"reference": await _reference(model, member)} if reference else {}
    if member is None:
        certificate = await model.replica.certify()
        owner = model.replica.spec["algorithm"]
    else:
        async with model.replica.serving():
            certificate = model.members().member_certificate(member)
        owner = f"member {member!r}"
    if certificate is None:
        reason = f"{owner} has no dual problem to certify against"
        if member is None and model.replica.member_certificates:
            known = ", ".join(model.replica.member_certificates)
            reason += f"; its members have: name one of {known} as `member`"
        raise Problem(404, "no-certificate", reason)
    return CertificateView(
        model=model_id,
        member=member,
        seq=model.replica.seq,
        primal=finite(certificate.primal),
        dual=finite(certificate.dual),
        gap=finite(certificate.gap),
        relative_gap=finite(certificate.relative_gap),
        rows=certificate.rows,
        weight_share=certificate.weight_share,
        estimate=certificate.estimate,
        **beside,
        **staleness(model),
    )


async def _reference(model: Model, member: str | None) -> ReferenceView:
    """Raises Problem 404 where there is none."""
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
        lower_bound=finite(found.lower),
        objective=finite(found.objective),
        served=finite(found.served),
        gap=finite(found.gap),
        rows=found.rows,
        regret=finite(found.regret),
        regret_rows=found.regret_rows,
        epochs=found.epochs,
        converged=found.converged,
    )
