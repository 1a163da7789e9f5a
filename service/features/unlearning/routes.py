"""DELETE /models/{id}/samples/{sample_id}: unlearn one sample."""

from fastapi import APIRouter, Request, Response

from dualstream.service.api.common import check_not_paused, registry_of
from dualstream.service.api.views import answer
from dualstream.service.codecs import LONGEST_KEY, is_key
from dualstream.service.features.unlearning.cleanup import UnlearnCleanup
from dualstream.service.features.unlearning.controls import Unlearn
from dualstream.service.features.unlearning.state import RetainedIds, digest_of
from dualstream.service.http.access import author_of
from dualstream.service.http.openapi import returns
from dualstream.service.journal.audit import Author
from dualstream.service.journal.record import KeyKind, make_key
from dualstream.service.models.model import Model
from dualstream.service.replica.requests import ControlRequest
from dualstream.solvers.protocols import unlearner
from dualstream.wire.changes import Unlearned
from dualstream.wire.problem_json import Problem

router = APIRouter(prefix="/models/{model_id}", tags=["samples"])


@router.delete(
    "/samples/{sample_id:path}",
    responses={
        200: returns(Unlearned),
        202: returns(Unlearned, "Unlearned; the store is being cleaned."),
        404: {"description": "Unknown sample id."},
        409: {"description": "The model cannot unlearn the sample; `detail` has the reason."},
        422: {"description": "Invalid sample id."},
    },
)
async def unlearn_sample(model_id: str, sample_id: str, request: Request) -> Response:
    """Unlearn a retained sample. Repeat the request until `status` is `done`."""
    if not is_key(sample_id):
        detail = f"a sample id must be 1 to {LONGEST_KEY} bytes of UTF-8 without control characters"
        raise Problem(422, "invalid-sample-id", detail)
    registry = registry_of(request)
    model = await registry.get(model_id)
    why_not = unlearner.why_not_unlearn(model.replica.spec)
    if why_not is not None:
        raise Problem(409, "cannot-unlearn", f"model {model_id!r} cannot unlearn: {why_not}")
    await model.refresh()
    seq = await _unlearned_at(model, sample_id)
    # A row whose label may be revised is in the store. Deleted first: it must not be learned again.
    key = make_key(KeyKind.LABEL, sample_id)
    await registry.journal.forget_labelled(model.record.id, model.record.incarnation, key)
    seq = seq or await _unlearn(model, sample_id, author_of(request))
    model.job(UnlearnCleanup).begin()
    is_done = await model.job(UnlearnCleanup).is_done(seq)
    status = "done" if is_done else "cleaning"
    view = Unlearned(model=model_id, sample=sample_id, seq=seq, status=status)
    return answer(view, status=200 if is_done else 202)


async def _unlearned_at(model: Model, sample_id: str) -> int | None:
    """Log position at which the sample was unlearned, or None. Raises Problem 404 or 409."""
    key = make_key(KeyKind.SAMPLE, sample_id)

    def read() -> tuple[list[int], int | None]:
        retained = model.replica.parts.find(RetainedIds)
        assert retained is not None
        return retained.seqs(digest_of(key)), retained.unlearned_at(digest_of(key))

    seqs, seq = await model.replica.view(read)
    if seqs or seq is not None:
        return seq
    entry = next(filter(None, await model.known([key, make_key(KeyKind.LABEL, sample_id)])), None)
    if entry is None:
        detail = f"model {model.record.id!r} has no sample {sample_id!r}, or its id has expired"
        raise Problem(404, "unknown-sample", detail)
    detail = (
        f"sample {sample_id!r}, learned at seq {entry.seq}, is not among the "
        f"{model.replica.spec['retain']} retained rows, so its effect cannot be separated"
    )
    raise Problem(409, "sample-not-retained", detail)


async def _unlearn(model: Model, sample_id: str, by: Author) -> int:
    """Unlearn the sample; returns the log position. Raises Problem 409."""
    check_not_paused(model)
    key = make_key(KeyKind.SAMPLE, sample_id)
    order = Unlearn(digest_of(key).hex())
    receipt = await model.submit(ControlRequest.of(order, by=by))
    outcome = receipt.control_outcome
    assert outcome is not None  # the control has no key, so it is no repeat
    if outcome.refusal is None:
        return receipt.position.seq
    # Another request came first and unlearned the sample, or newer rows evicted it.
    seq = await _unlearned_at(model, sample_id)
    if seq is None:
        detail = f"sample {sample_id!r} cannot be unlearned: {outcome.refusal}"
        raise Problem(409, "cannot-unlearn", detail)
    return seq
