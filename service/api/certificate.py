"""The certificate: how far the served weights are from the best ones on their window."""

import math

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from service.api.models import catalog_of
from service.errors import Problem

router = APIRouter(prefix="/models", tags=["models"])


class CertificateView(BaseModel):
    """Primal, dual and their gap; it certifies optimisation, not generalisation.

    A number is null where it is too large for a float.
    """

    model: str
    seq: int
    primal: float | None = Field(description="Regularised loss of the served weights.")
    dual: float | None = Field(description="No weights can have a smaller one than this.")
    gap: float | None = Field(description="primal - dual, never negative.")
    relative_gap: float | None = Field(description="gap over the larger of |primal| and |dual|.")
    rows: int = Field(description="Retained rows that the gap was computed on.")
    weight_share: float = Field(description="The share of the window's weight that they carry.")
    estimate: bool = Field(description="Exact for sliding windows, an estimate otherwise.")


@router.get("/{model_id}/certificate", response_model=CertificateView)
async def read_certificate(model_id: str, request: Request) -> CertificateView:
    """The certificate of the model as it stands."""
    model = await catalog_of(request).get(model_id)
    certificate = await model.replica.certify()
    if certificate is None:
        algorithm = model.replica.spec["algorithm"]
        raise Problem(404, "no-certificate", f"{algorithm} has no dual problem to certify against")
    return CertificateView(
        model=model_id,
        seq=model.replica.seq,
        primal=_finite(certificate.primal),
        dual=_finite(certificate.dual),
        gap=_finite(certificate.gap),
        relative_gap=_finite(certificate.relative_gap),
        rows=certificate.rows,
        weight_share=certificate.weight_share,
        estimate=certificate.estimate,
    )


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
