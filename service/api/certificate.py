"""The certificate: how far the served weights are from the best ones on their window."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import Field

from service.api.freshness import MaybeStale, staleness
from service.api.member_views import finite
from service.api.models import catalog_of
from service.errors import Problem

router = APIRouter(prefix="/models", tags=["models"])


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


@router.get(
    "/{model_id}/certificate", response_model=CertificateView, response_model_exclude_unset=True
)
async def read_certificate(
    model_id: str,
    request: Request,
    member: Annotated[str | None, Query(description="Of this member alone.")] = None,
) -> CertificateView:
    """The certificate of the model as it stands."""
    model = await catalog_of(request).get(model_id)
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
        **staleness(model),
    )
