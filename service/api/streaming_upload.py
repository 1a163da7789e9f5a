"""Streaming upload: a body of any length is learned chunk by chunk while it arrives.

A pipeline of four stages: while one chunk is learned, the next is appended, the third is parsed and
encoded, and the bytes of the fourth arrive. The sender is not read further, so memory is bounded by
a few chunks. Each chunk is a learn with its own key, and starts after the previous chunk is in the
journal. So an interrupted upload leaves complete first chunks, and a repeat with the same key
resumes after them.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass

from msgspec import structs

from dualstream.service.api.errors import as_problem
from dualstream.service.api.http import Head
from dualstream.service.api.learn_rows import INLINE_BYTES, fingerprint_of, learned_of
from dualstream.service.api.rate_limits import Limited
from dualstream.service.api.responses import NO_ROWS, RowsRefused, first_errors
from dualstream.service.codecs import CHUNK_BYTES, Chunk, ParsedRows, parse_chunk
from dualstream.service.concurrency import background_task
from dualstream.service.journal.protocol import ModelChanged
from dualstream.service.journal.record import KeyKind, make_key
from dualstream.service.models.model import Model
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.replica.requests import Request
from dualstream.wire.problems import Problem, RowError
from dualstream.wire.schemas import Learned, LearnedChunk, LearnedStream
from dualstream.wire.totals import Totals


@dataclass(slots=True)
class _ParsedChunk:
    """A chunk and its rows, parsed by the row schema of `model`."""

    chunk: Chunk
    model: Model
    key: bytes | None
    """The stored key of its request; None if the upload has no key."""
    intake: ParsedRows
    request: Request | None
    """The journal request; None if no row is good."""


@dataclass(slots=True)
class _PendingChunk:
    """A chunk that is being appended and learned."""

    read: _ParsedChunk
    journalled: asyncio.Event
    """Set once the append has succeeded or failed."""
    task: "asyncio.Task[tuple[Learned, bool]]"
    """The answer, and whether it repeats the first answer to the chunk's key."""


class Upload:
    """One upload: parses, submits and learns its chunks in order."""

    def __init__(
        self,
        catalog: ModelRegistry,
        model_id: str,
        head: Head,
        query: dict[str, str],
        key: str | None,
        wants_scores: bool,
        limited: Limited | None = None,
    ) -> None:
        self._catalog = catalog
        self._model_id = model_id
        self._head = head
        self._query = query
        self._key = key
        self._wants_scores = wants_scores
        self._limited = limited
        self._incarnation: str | None = None
        self._opening: int | None = None
        """Number of the first chunk with a good row; this chunk has the request's own key."""
        self._taken = self._replayed = 0
        self._coming: asyncio.Task[Chunk | None] | None = None
        self._reading: asyncio.Task[_ParsedChunk | None] | None = None
        self._is_stopped = False
        self.totals = Totals()

    async def learn(self, chunks: AsyncIterator[Chunk]) -> AsyncGenerator[LearnedChunk]:
        """The answer of each chunk, as soon as it is acknowledged.

        Raises Problem, with `seq` and `chunks` of the acknowledged part, for any expected failure.
        """
        try:
            async with aclosing(self._learn_all(chunks)) as learned:
                async for told in learned:
                    yield told
        except Exception as error:
            problem = as_problem(error)
            if problem is None:
                raise
            problem.extra |= {"seq": self.totals.seq, "chunks": self.totals.chunks}
            if problem is error:
                raise
            raise problem from error

    def result(self) -> LearnedStream:
        """The totals of all chunks. Raises RowsRefused if no row was accepted."""
        totals = self.totals
        if totals.seq:
            return totals.told(self._model_id)
        if not totals.rows:
            raise Problem(422, "invalid-rows", NO_ROWS)
        errors = [RowError(**error) for error in totals.errors]
        raise RowsRefused(totals.rows, totals.rejected or 0, errors)

    @property
    def is_replayed(self) -> bool:
        """Whether every chunk with accepted rows repeated its first answer."""
        return 0 < self._taken == self._replayed

    async def _learn_all(self, chunks: AsyncIterator[Chunk]) -> AsyncGenerator[LearnedChunk]:
        try:
            async with aclosing(self._learn_each(chunks)) as learned:
                async for told in learned:
                    yield told
        finally:  # `chunks` cannot be closed while this task runs it
            if self._coming is not None and not self._coming.done():
                self._coming.cancel()
                await asyncio.wait([self._coming])

    async def _learn_each(self, chunks: AsyncIterator[Chunk]) -> AsyncGenerator[LearnedChunk]:
        learned: _PendingChunk | None = None  # in the journal
        learning: _PendingChunk | None = None
        while True:
            reading = self._reading = background_task(self._read_next(chunks))
            try:
                if learned is not None:
                    yield await self._result(learned)
                if learning is not None:
                    await learning.journalled.wait()
                learned = learning
                if self._is_stopped:
                    reading.cancel()
                while not reading.done():
                    awaited = [reading] if learned is None else [reading, learned.task]
                    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                    if learned is not None and learned.task.done():
                        yield await self._result(learned)
                        learned = None
                ends = reading.cancelled() or reading.exception() or reading.result() is None
                if learned is not None and (ends or learned.task.done()):
                    yield await self._result(learned)
                    learned = None
                if reading.cancelled():
                    raise _shutting_down()
                read = reading.result()
            finally:
                if not reading.done():
                    reading.cancel()
                    await asyncio.wait([reading])
            if read is None:
                return
            learning = self._begin(read)

    async def _read_next(self, chunks: AsyncIterator[Chunk]) -> _ParsedChunk | None:
        coming = self._coming or background_task(_next_of(chunks))
        chunk = await coming
        if chunk is None:
            return None
        self._coming = background_task(_next_of(chunks))
        read = await self._read(chunk, self._likely_key(chunk.number))
        if self._limited is not None:
            await self._limited.wait_for_rows(read.intake.count)
        return read

    def stop(self) -> None:
        """Stop reading, at shutdown: the server does not wait for the end of the body."""
        self._is_stopped = True
        if self._reading is not None:
            self._reading.cancel()

    def _begin(self, read: _ParsedChunk) -> _PendingChunk:
        """Start to learn a chunk, in a task that ends even if the request is cancelled."""
        if read.request is not None:
            self._opens(read.chunk.number)  # before the next chunk is parsed, which needs its key
        journalled = asyncio.Event()
        task = background_task(self._submit(read, journalled))
        task.add_done_callback(lambda done: journalled.set())
        return _PendingChunk(read, journalled, task)

    async def _model(self) -> Model:
        """The current model. Raises ModelChanged if earlier chunks went to a deleted one."""
        model = self._catalog.held(self._model_id) or await self._catalog.get(self._model_id)
        if self._incarnation not in (None, model.record.incarnation):
            raise ModelChanged(self._model_id)
        return model

    def _opens(self, number: int) -> bool:
        """Whether a chunk with good rows has the request's own key. Call it in chunk order.

        The first such chunk has it, so that a key of another request is detected. A chunk without a
        good row is not submitted and has no key.
        """
        if self._opening is None:
            self._opening = number
        return self._opening == number

    def _likely_key(self, number: int) -> bytes | None:
        """The stored key of a chunk if it has a good row, which is not known yet."""
        if self._key is None:
            return None
        is_opening = self._opening in (None, number)
        return _own_key(self._key) if is_opening else _numbered_key(self._key, number)

    async def _key_of(self, model: Model, number: int) -> bytes | None:
        """The stored key of a chunk with good rows, just before it is submitted."""
        if self._key is None:
            return None
        own, numbered = _own_key(self._key), _numbered_key(self._key, number)
        if not self._opens(number):
            return numbered
        if number > 0:
            # Earlier versions stored this chunk under a key with its number.
            with suppress(ModelChanged):  # the submit raises it again
                own_known, numbered_known = await model.known([own, numbered])
                return own if own_known is not None or numbered_known is None else numbered
        return own

    async def _read(self, chunk: Chunk, key: bytes | None) -> _ParsedChunk:
        model = await self._model()
        if len(chunk.body) <= INLINE_BYTES:
            return self._read_for(model, chunk, key)
        return await asyncio.to_thread(self._read_for, model, chunk, key)

    async def _read_again(self, read: _ParsedChunk, key: bytes | None) -> None:
        """Parse a chunk again, for the current model or another key."""
        again = await self._read(read.chunk, key)
        read.model, read.key = again.model, again.key
        read.intake, read.request = again.intake, again.request

    def _read_for(self, model: Model, chunk: Chunk, key: bytes | None) -> _ParsedChunk:
        intake = parse_chunk(model.door, self._head.content_type, chunk.body, labelled=True)
        if not intake.places:
            return _ParsedChunk(chunk, model, key, intake, None)
        fingerprint = None
        if key is not None:
            what = f"chunk {chunk.number}\0"
            fingerprint = fingerprint_of(self._head, self._query, chunk.body, what)
        request = Request.of(intake.rows, key, fingerprint, intake.names_beside)
        return _ParsedChunk(chunk, model, key, intake, request)

    async def _result(self, learning: _PendingChunk) -> LearnedChunk:
        """The answer of a chunk. Call it in chunk order."""
        read = learning.read
        try:
            told, is_replayed = await asyncio.shield(learning.task)
        except RowsRefused as refused:
            told = self._none_of(read, refused)
        else:
            self._taken += 1
            self._replayed += is_replayed
        rows = read.intake.count
        if read.intake.errors:
            self._catalog.telemetry.saw_refused(self._model_id, len(read.intake.errors))
        self.totals.add_at(told, rows, read.chunk.line)
        return LearnedChunk(**structs.asdict(told), chunk=read.chunk.number, bytes=read.chunk.ends)

    def _none_of(self, read: _ParsedChunk, refused: RowsRefused) -> Learned:
        """The answer of a chunk without an accepted row."""
        mistakes = None if read.model.door.task == "regression" else 0
        return Learned(
            model=self._model_id,
            seq=self.totals.seq,
            count=0,
            learned=0,
            mistakes=mistakes,
            loss=None,
            rejected=refused.rejected,
            duplicate=False,
            errors=first_errors(refused.errors),
        )

    async def _submit(self, read: _ParsedChunk, journalled: asyncio.Event) -> tuple[Learned, bool]:
        while True:
            model = await self._model()
            if read.model is not model:
                await self._read_again(read, read.key)
                model = read.model
            intake, request = read.intake, read.request
            if request is None:
                if self._opening == read.chunk.number:  # had good rows for a replaced model
                    self._opening = None
                raise RowsRefused(intake.count, len(intake.errors), intake.errors)
            key = await self._key_of(model, read.chunk.number)
            if read.key != key:
                await self._read_again(read, key)
                continue

            def on_journalled(incarnation: str = model.record.incarnation) -> None:
                self._incarnation = incarnation
                journalled.set()

            request.on_journalled, request.is_followed = on_journalled, True
            try:
                receipt = await model.submit(request)
            except ModelChanged:  # deleted or replaced since it was loaded
                if self._incarnation is not None:
                    raise
                continue
            told = await learned_of(model, intake, request, receipt, self._wants_scores)
            self._incarnation = model.record.incarnation
            return told


async def _next_of(chunks: AsyncIterator[Chunk]) -> Chunk | None:
    return await anext(chunks, None)


def _shutting_down() -> Problem:
    detail = "the server is shutting down; repeat the request with the same Idempotency-Key"
    return Problem(503, "shutting-down", detail, retry_after_s=1)


def check_asked(head: Head, wants_scores: bool, atomic: bool) -> None:
    """Raise Problem 422 for options that a streamed body does not support."""
    if atomic:
        detail = (
            f"atomic=true supports bodies of at most {CHUNK_BYTES} bytes; send fewer rows at once"
        )
        raise Problem(422, "invalid-query", detail)
    if wants_scores and not head.wants_lines:
        detail = (
            f"scores=true with a body of more than {CHUNK_BYTES} bytes requires"
            " Accept: application/x-ndjson"
        )
        raise Problem(422, "invalid-query", detail)


def _own_key(key: str) -> bytes:
    return make_key(KeyKind.REQUEST, key)


def _numbered_key(key: str, number: int) -> bytes:
    return make_key(KeyKind.CHUNK, f"{number}:{key}")
