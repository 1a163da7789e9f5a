"""GET /models/{id}/certificate: duality gap of the served weights on their window."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from msgspec import structs

from dualstream.service.api.common import registry_of
from dualstream.service.api.views import NULL_REASON, answer, has_null, staleness
from dualstream.service.features.certificate.reference_optimum import References
from dualstream.service.http.openapi import returns
from dualstream.service.models.model import Model
from dualstream.solvers import Certificate as Certified, RefitError
from dualstream.solvers.offline import refit_methods
from dualstream.wire.problem_json import Problem
from dualstream.wire.responses import Certificate, Reference

router = APIRouter(prefix="/models", tags=["models"])


@router.get("/{model_id}/certificate", responses={200: returns(Certificate)})
async def read_certificate(
    model_id: str,
    request: Request,
    member: Annotated[str | None, Query(description="Certificate of this member.")] = None,
    reference: Annotated[bool, Query(description="Also solve the retained rows.")] = False,
) -> Response:
    """Certificate of the current state."""
    model = await registry_of(request).get(model_id)
    optimum = await _reference(model, member) if reference else None
    replica = model.replica

    def read() -> tuple[Certified | None, int]:
        if member is None:
            return replica.certified(), replica.seq
        return model.members().member_certificate(member), replica.seq

    certificate, seq = await replica.view(read)
    owner = replica.spec["algorithm"] if member is None else f"member {member!r}"
    if certificate is None:
        reason = f"{owner} has no dual problem, so it has no certificate"
        if member is None and replica.member_certificates:
            names = ", ".join(replica.member_certificates)
            reason += f"; set `member` to one of: {names}"
        raise Problem(404, "no-certificate", reason)
    numbers = asdict(certificate)
    is_null = has_null(numbers) or (optimum is not None and has_null(structs.asdict(optimum)))
    fields = {"reason": NULL_REASON if is_null else None, "reference": optimum, **staleness(model)}
    return answer(Certificate(model=model_id, member=member, seq=seq, **numbers, **fields))


async def _reference(model: Model, member: str | None) -> Reference:
    """Raises Problem 404 if the model has no reference."""
    why_not = refit_methods.why_no_reference(model.replica.spec)
    if member is not None:
        why_not = "a member has no reference of its own"
    if why_not is not None:
        raise Problem(404, "no-reference", f"model {model.record.id!r} has no reference: {why_not}")
    try:
        optimum = await model.job(References).find()
    except RefitError as error:
        raise Problem(404, "no-reference", str(error)) from None
    return Reference(
        seq=optimum.position.seq,
        lower_bound=optimum.lower,
        objective=optimum.objective,
        served=optimum.served,
        gap=optimum.gap,
        rows=optimum.rows,
        regret=optimum.regret,
        regret_rows=optimum.regret_rows,
        epochs=optimum.epochs,
        converged=optimum.converged,
    )
