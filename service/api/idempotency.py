"""Idempotency of control requests: a repeat under the same key gets the first answer."""

import hashlib
from typing import NamedTuple

from fastapi import Response

from dualstream.service.models.model import Model
from dualstream.service.replica.outcomes import KeptOutcome
from dualstream.wire.problems import Problem, key_reused

REPLAYED = "idempotency-replayed"


class Repeated(NamedTuple):
    """A control record in the journal that an earlier request made."""

    seq: int
    outcome: KeptOutcome | None
    """Its outcome; None if that is no longer kept."""

    def check_done(self, refusal: Problem) -> None:
        """Raise `refusal`, marked as a repeated answer, if the first answer was a refusal."""
        if self.outcome is not None and self.outcome.refusal is not None:
            refusal.detail = self.outcome.refusal
            refusal.is_replayed = True
            raise refusal

    def mark(self, response: Response) -> None:
        """Set the header `Idempotency-Replayed`."""
        response.headers[REPLAYED] = "true"


async def repeated(model: Model, key: bytes | None, requested: bytes) -> Repeated | None:
    """The control record with this stored key; None if the key is new.

    Raises Problem 422 if the key was used with another request than `requested`.
    """
    if key is None:
        return None
    [known] = await model.known([key])
    if known is None:
        return None
    if known.fingerprint != hashlib.sha256(requested).digest()[:16]:
        raise key_reused()
    return await repeated_at(model, known.seq)


async def repeated_at(model: Model, seq: int) -> Repeated:
    """The control record at `seq`, after the replica has applied it."""
    await model.refresh(seq)
    return Repeated(seq, model.replica.control_outcomes.at(seq))
