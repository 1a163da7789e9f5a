"""Redis input: learns messages that producers write into the input streams of the store.

Any worker may read any stream. Two workers that read the same messages append them with the same
cursor move. One of them wins; the other pauses for that model, and continues if the first one
dies. There is no owner and no hand-over. A message in a stream is not learned yet, and a learned
message is no longer in the stream.
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

log = logging.getLogger("dualstream.redis_input")

POLL_S = 0.02
# Largest share of the time that polling takes.
POLL_SHARE = 0.05
MAX_PAUSE_S = 5.0
# Pauses of a model: another worker was faster, or an error occurred.
LOST_S, TROUBLE_S = 0.5, 1.0
MODELS_AT_ONCE = 8
GROUPS_PER_TURN = 10
"""Groups of one model's messages before another model gets a turn."""
REUSED = "/id: the id was used for another sample"


def has_inputs(journal: Journal) -> HasInputs:
    """The journal as a store with input streams. Raises ValueError if it has none."""
    if isinstance(journal, HasInputs):
        return journal
    raise ValueError(
        "DUALSTREAM_REDIS_INPUT=1 needs a Redis store: set DUALSTREAM_STORE=redis://HOST:PORT/DB"
    )


class RedisInputs:
    """Polls for messages and learns those of several models at once."""

    def __init__(self, registry: "ModelRegistry", inputs: HasInputs) -> None:
        self._registry = registry
        self._inputs = inputs
        self._readers: dict[str, asyncio.Task[None]] = {}
        # Time of the last turn of each model with messages, and of the end of its pause.
        self._served_at: dict[str, float] = {}
        self._paused_until: dict[str, float] = {}
        self._trouble: dict[str, str] = {}

    async def run(self) -> None:
        """Learn messages until cancelled."""
        try:
            while True:
                began = time.monotonic()
                try:
                    await self._start_readers()
                    self._trouble.pop("", None)
                    took = time.monotonic() - began
                    pause_s = min(max(POLL_S, took / POLL_SHARE), MAX_PAUSE_S)
                except Exception as error:
                    self._log_once("", error)
                    pause_s = TROUBLE_S
                await asyncio.sleep(pause_s)
        finally:
            # The committer finishes what they have submitted.
            for reader in self._readers.values():
                reader.cancel()
            await asyncio.gather(*self._readers.values(), return_exceptions=True)

    async def _start_readers(self) -> None:
        """Start a reader for each model with messages, the longest waiting model first."""
        pending = await self._inputs.pending()
        self._registry.counters.saw_pending(pending)
        now = time.monotonic()
        self._served_at = {id_: self._served_at.get(id_, 0.0) for id_ in pending}
        self._paused_until = {id_: at for id_, at in self._paused_until.items() if at > now}
        for model_id in sorted(pending, key=lambda id_: self._served_at[id_]):
            if len(self._readers) >= MODELS_AT_ONCE:
                return
            if model_id not in self._readers and model_id not in self._paused_until:
                self._served_at[model_id] = now
                self._readers[model_id] = asyncio.create_task(self._serve(model_id))

    async def _serve(self, model_id: str) -> None:
        """Learn up to GROUPS_PER_TURN groups of messages of one model."""
        rest_s = 0.0
        try:
            with self._registry.pinned(model_id):
                for _ in range(GROUPS_PER_TURN):
                    if not await self._learn_messages(await self._registry.get(model_id)):
                        break
            self._trouble.pop(model_id, None)
        except CursorMoved:
            rest_s = LOST_S
        except Exception as error:
            self._log_once(model_id, error)
            rest_s = TROUBLE_S
        finally:
            del self._readers[model_id]
        if rest_s:
            self._paused_until[model_id] = time.monotonic() + rest_s

    async def _learn_messages(self, model: "Model") -> bool:
        """Learn the first messages as one group. False if there are none.

        Raises CursorMoved if another worker has learned them, and what the append raises.
        """
        record = model.record
        try:
            waiting = await self._inputs.waiting(record.id, record.incarnation)
        except ModelChanged:
            self._registry.forget(model)
            raise
        if not waiting.messages:
            return False
        # In a thread: each row with an id is encoded on its own.
        parsed, request = await asyncio.to_thread(
            _read, model, waiting, self._registry.settings.max_body_bytes
        )
        receipt = await model.submit(request)
        if receipt.scores is not None:
            model.mark_names_journalled(parsed, receipt)
        taken = len(parsed.row_indices) - len(receipt.conflicts)
        self._registry.counters.saw_input(record.id, taken, len(waiting.messages) - taken)
        return True

    def _log_once(self, model_id: str, error: Exception) -> None:
        """Log an error once until it changes."""
        if self._trouble.get(model_id) != str(error):
            known = isinstance(error, JournalError | Problem | RecordError)
            whose = f"the input of model {model_id!r}" if model_id else "the inputs"
            log.warning("cannot learn from %s: %s", whose, error, exc_info=None if known else error)
        self._trouble[model_id] = str(error)


def _read(model: "Model", waiting: Waiting, most_bytes: int) -> tuple[ParsedRows, Request]:
    """The rows of these messages, and the request that learns them and moves the cursor."""
    messages = waiting.messages
    parsed = parse_messages(model.row_schema, [message.fields for message in messages], most_bytes)
    request = (
        Request.of(parsed.rows, None, None) if parsed.row_indices else Request([], parsed.rows)
    )
    request.cursor = InputMove(
        CURSOR,
        waiting.cursor,
        messages[-1].id,
        tuple(message.id for message in messages),
        tuple((error.index, _reason(error)) for error in parsed.errors),
        tuple(_keyed_parts(request, parsed)),
        REUSED,
    )
    return parsed, request


def _reason(error: RowError) -> str:
    return f"{error.pointer}: {error.reason}" if error.pointer else error.reason


def _keyed_parts(request: Request, parsed: ParsedRows) -> Iterator[tuple[int, int]]:
    """Parts with an id: their number, and the index of their message."""
    row = 0
    for number, part in enumerate(request.parts):
        if part.key is not None:
            yield number, parsed.row_indices[row]
        row += part.count
