"""Learns what producers write into the store's inputs, for every model of the store.

Any worker may try. Two that read the same messages append them under the same move of a cursor,
which one of them wins; the other leaves that model alone for a while, and takes over where the
first has died. There is no owner and nothing to hand over: what waits in an input is not learned,
what is learned does not wait.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dualstream.service.codecs import ParsedRows, parse_messages
from dualstream.service.journal.input_streams import CURSOR, HasInputs, InputMove, Waiting
from dualstream.service.journal.protocol import CursorMoved, Journal, JournalError, ModelChanged
from dualstream.service.journal.record import RecordError
from dualstream.service.replica.requests import Request
from dualstream.wire.problems import Problem, RowError

if TYPE_CHECKING:
    from dualstream.service.models.model import Model
    from dualstream.service.models.registry import ModelRegistry

log = logging.getLogger("dualstream.intakes")

POLL_S = 0.02
# Of the time, no more than this share goes into looking for messages.
LOOKING_SHARE = 0.05
LONGEST_PAUSE_S = 5.0
# Where another worker was faster, or something is wrong.
LOST_S, TROUBLE_S = 0.5, 1.0
MODELS_AT_ONCE = 8
GROUPS_IN_TURN = 10
"""So many groups of one model's messages, then others may come first."""
REUSED = "/id: the id was used for another sample"


def has_inputs(journal: Journal) -> HasInputs:
    """The journal. Raises ValueError where its store has no inputs."""
    if isinstance(journal, HasInputs):
        return journal
    raise ValueError("DUALSTREAM_REDIS_INPUT=1 needs a store in Redis: redis://HOST:PORT/DB")


class RedisInputs:
    """Looks for messages, and takes those of several models at once."""

    def __init__(self, catalog: "ModelRegistry", inputs: HasInputs) -> None:
        self._catalog = catalog
        self._inputs = inputs
        self._takers: dict[str, asyncio.Task[None]] = {}
        # When each model that had messages had its turn, and until when it is left alone.
        self._turns: dict[str, float] = {}
        self._resting: dict[str, float] = {}
        self._trouble: dict[str, str] = {}

    async def run(self) -> None:
        """Take messages until cancelled."""
        try:
            while True:
                began = time.monotonic()
                try:
                    await self._look()
                    self._trouble.pop("", None)
                    took = time.monotonic() - began
                    pause_s = min(max(POLL_S, took / LOOKING_SHARE), LONGEST_PAUSE_S)
                except Exception as error:
                    self._say("", error)
                    pause_s = TROUBLE_S
                await asyncio.sleep(pause_s)
        finally:
            # What they have submitted is finished by its committer.
            for taker in self._takers.values():
                taker.cancel()
            await asyncio.gather(*self._takers.values(), return_exceptions=True)

    async def _look(self) -> None:
        """Begin with the models that have messages, those first whose turn is longest ago."""
        pending = await self._inputs.pending()
        self._catalog.telemetry.saw_pending(pending)
        now = time.monotonic()
        self._turns = {id_: self._turns.get(id_, 0.0) for id_ in pending}
        self._resting = {id_: at for id_, at in self._resting.items() if at > now}
        for model_id in sorted(pending, key=lambda id_: self._turns[id_]):
            if len(self._takers) >= MODELS_AT_ONCE:
                return
            if model_id not in self._takers and model_id not in self._resting:
                self._turns[model_id] = now
                self._takers[model_id] = asyncio.create_task(self._serve(model_id))

    async def _serve(self, model_id: str) -> None:
        """A model's turn."""
        rest_s = 0.0
        try:
            with self._catalog.pinned(model_id):
                for _ in range(GROUPS_IN_TURN):
                    if not await self._take(await self._catalog.get(model_id)):
                        break
            self._trouble.pop(model_id, None)
        except CursorMoved:
            rest_s = LOST_S
        except Exception as error:
            self._say(model_id, error)
            rest_s = TROUBLE_S
        finally:
            del self._takers[model_id]
        if rest_s:
            self._resting[model_id] = time.monotonic() + rest_s

    async def _take(self, model: "Model") -> bool:
        """Take the first messages, as one group; False where none waits.

        Raises CursorMoved where another worker has taken them, and what the append raises.
        """
        record = model.record
        try:
            waiting = await self._inputs.waiting(record.id, record.incarnation)
        except ModelChanged:
            self._catalog.forget(model)
            raise
        if not waiting.messages:
            return False
        # Of rows with ids each is encoded on its own; others are answered meanwhile.
        intake, request = await asyncio.to_thread(
            _read, model, waiting, self._catalog.settings.max_body_bytes
        )
        receipt = await model.submit(request)
        if receipt.scores is not None:
            model.remember_told(intake, receipt)
        taken = len(intake.places) - len(receipt.conflicts)
        self._catalog.telemetry.saw_input(record.id, taken, len(waiting.messages) - taken)
        return True

    def _say(self, model_id: str, error: Exception) -> None:
        """Once, as long as it goes on."""
        if self._trouble.get(model_id) != str(error):
            known = isinstance(error, JournalError | Problem | RecordError)
            whose = f"the input of model {model_id!r}" if model_id else "the inputs"
            log.warning("cannot take %s: %s", whose, error, exc_info=None if known else error)
        self._trouble[model_id] = str(error)


def _read(model: "Model", waiting: Waiting, most_bytes: int) -> tuple[ParsedRows, Request]:
    """The rows of these messages, and the request that takes them out of the input."""
    messages = waiting.messages
    intake = parse_messages(model.door, [message.fields for message in messages], most_bytes)
    request = Request.of(intake.rows, None, None) if intake.places else Request([], intake.rows)
    request.cursor = InputMove(
        CURSOR,
        waiting.cursor,
        messages[-1].id,
        tuple(message.id for message in messages),
        tuple((error.index, _reason(error)) for error in intake.errors),
        tuple(_parts_with_ids(request, intake)),
        REUSED,
    )
    return intake, request


def _reason(error: RowError) -> str:
    return f"{error.pointer}: {error.reason}" if error.pointer else error.reason


def _parts_with_ids(request: Request, intake: ParsedRows) -> Iterator[tuple[int, int]]:
    """Numbers of the parts that have a row with an id, and the places of their messages."""
    row = 0
    for number, part in enumerate(request.parts):
        if part.key is not None:
            yield number, intake.places[row]
        row += part.count
