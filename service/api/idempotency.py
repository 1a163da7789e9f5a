"""Controls that are asked for once more under their Idempotency-Key: the first answer again."""

import hashlib
from typing import NamedTuple

from fastapi import Response

from dualstream.service.models.model import Model
from dualstream.service.replica.control_outcomes import KeptOutcome
from dualstream.wire.problems import Problem, key_reused

REPLAYED = "idempotency-replayed"


class Repeated(NamedTuple):
    """A control that stands in the journal."""

    seq: int
    told: KeptOutcome | None
    """What became of it, if that is still kept."""

    def check_done(self, refusal: Problem) -> None:
        """Raise `refusal`, marked as the first answer again, where that refused it."""
        if self.told is not None and self.told.refusal is not None:
            refusal.detail = self.told.refusal
            refusal.is_replayed = True
            raise refusal

    def mark(self, response: Response) -> None:
        """Say that the answer is the first one again."""
        response.headers[REPLAYED] = "true"


async def repeated(model: Model, key: bytes | None, asked: bytes) -> Repeated | None:
    """The control under this stored key; None where there is none.

    Raises Problem 422 where it was of something else than what is `asked`.
    """
    if key is None:
        return None
    [known] = await model.known([key])
    if known is None:
        return None
    if known.fingerprint != hashlib.sha256(asked).digest()[:16]:
        raise key_reused()
    return await repeated_at(model, known.seq)


async def repeated_at(model: Model, seq: int) -> Repeated:
    """The control at `seq`, which the replica is brought up to."""
    await model.refresh(seq)
    return Repeated(seq, model.replica.verdicts.at(seq))
