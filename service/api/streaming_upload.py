"""A body of any length, learned chunk by chunk as it arrives.

While one chunk is learned the next one is appended, the one behind it is read and encoded, and the
bytes of a fourth come in; no more is asked of the sender, so that memory holds a few chunks however
long the body is. Each is a learn of its own under a key of its own, and none is begun before the
one in front of it stands in the journal: whatever ends an upload early leaves its first chunks,
whole, and who repeats it under its key goes on from there.
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
from dualstream.service.api.responses import RowsRefused, first_errors
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
class _Read:
    """A chunk and its rows, as the schema of this model took them."""

    chunk: Chunk
    model: Model
    key: bytes | None
    """The stored key that it was read for; None where the upload has none."""
    parsed: ParsedRows
    request: Request | None
    """What is submitted of it; None where no row is good."""


@dataclass(slots=True)
class _Learning:
    """A chunk on its way into the journal and the model."""

    read: _Read
    journalled: asyncio.Event
    """Set as soon as it is known what becomes of it in the journal."""
    task: "asyncio.Task[tuple[Learned, bool]]"
    """What became of it, and whether that is the first answer to its key once more."""


class Upload:
    """One request whose chunks are learned one after the other."""

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
        """The number of the first chunk with a good row: it has the request's own key."""
        self._taken = self._replayed = 0
        self._coming: asyncio.Task[Chunk | None] | None = None
        self._reading: asyncio.Task[_Read | None] | None = None
        self._is_stopped = False
        self.totals = Totals()

    async def learn(self, chunks: AsyncIterator[Chunk]) -> AsyncGenerator[LearnedChunk]:
        """What became of each chunk, as soon as it is acknowledged.

        Raises what reading and learning them raises, as a Problem that tells how many chunks stand.
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

    def told(self) -> LearnedStream:
        """What became of all chunks together. Raises RowsRefused where no row was taken."""
        totals = self.totals
        if totals.seq:
            return totals.result(self._model_id)
        if not totals.rows:
            raise Problem(422, "invalid-rows", "the request holds no row")
        errors = [RowError(**error) for error in totals.errors]
        raise RowsRefused(totals.rows, totals.rejected or 0, errors)

    @property
    def is_replayed(self) -> bool:
        """Whether of each chunk of which rows were taken the first answer to its key is told."""
        return 0 < self._taken == self._replayed

    async def _learn_all(self, chunks: AsyncIterator[Chunk]) -> AsyncGenerator[LearnedChunk]:
        try:
            async with aclosing(self._learn_each(chunks)) as learned:
                async for told in learned:
                    yield told
        finally:  # whoever closes `chunks` must not meet it running
            if self._coming is not None and not self._coming.done():
                self._coming.cancel()
                await asyncio.wait([self._coming])

    async def _learn_each(self, chunks: AsyncIterator[Chunk]) -> AsyncGenerator[LearnedChunk]:
        learned: _Learning | None = None  # in the journal
        learning: _Learning | None = None
        while True:
            reading = self._reading = background_task(self._read_next(chunks))
            try:
                if learned is not None:
                    yield await self._told(learned)
                if learning is not None:
                    await learning.journalled.wait()
                learned = learning
                if self._is_stopped:
                    reading.cancel()
                while not reading.done():
                    awaited = [reading] if learned is None else [reading, learned.task]
                    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                    if learned is not None and learned.task.done():
                        yield await self._told(learned)
                        learned = None
                ends = reading.cancelled() or reading.exception() or reading.result() is None
                if learned is not None and (ends or learned.task.done()):
                    yield await self._told(learned)
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

    async def _read_next(self, chunks: AsyncIterator[Chunk]) -> _Read | None:
        coming = self._coming or background_task(_next_of(chunks))
        chunk = await coming
        if chunk is None:
            return None
        self._coming = background_task(_next_of(chunks))
        read = await self._read(chunk, self._likely_key(chunk.number))
        if self._limited is not None:
            await self._limited.wait_for_rows(read.parsed.count)
        return read

    def stop(self) -> None:
        """Read no more: the server is about to end, and would wait for the body's end."""
        self._is_stopped = True
        if self._reading is not None:
            self._reading.cancel()

    def _begin(self, read: _Read) -> _Learning:
        """Learn a chunk to its end, whoever waits for it."""
        if read.request is not None:
            self._opens(read.chunk.number)  # now: the next one is read for a key of its number then
        journalled = asyncio.Event()
        task = background_task(self._submit(read, journalled))
        task.add_done_callback(lambda done: journalled.set())
        return _Learning(read, journalled, task)

    async def _model(self) -> Model:
        """As it is held now. Raises ModelChanged where the first chunks went to another one."""
        model = self._catalog.held(self._model_id) or await self._catalog.get(self._model_id)
        if self._incarnation not in (None, model.record.incarnation):
            raise ModelChanged(self._model_id)
        return model

    def _opens(self, number: int) -> bool:
        """Whether a chunk with good rows has the request's own key; to be asked in their order.

        The first one has, so that the key of another request is known as such. One without a good
        row is not submitted, and has none.
        """
        if self._opening is None:
            self._opening = number
        return self._opening == number

    def _likely_key(self, number: int) -> bytes | None:
        """The stored key of a chunk, before it is known whether it has a good row."""
        if self._key is None:
            return None
        is_opening = self._opening in (None, number)
        return _own_key(self._key) if is_opening else _numbered_key(self._key, number)

    async def _key_of(self, model: Model, number: int) -> bytes | None:
        """The stored key of a chunk with good rows that is about to be submitted."""
        if self._key is None:
            return None
        own, numbered = _own_key(self._key), _numbered_key(self._key, number)
        if not self._opens(number):
            return numbered
        if number > 0:
            # Earlier versions gave it a key of its number, under which it may be known.
            with suppress(ModelChanged):  # as who submits it finds
                own_known, numbered_known = await model.known([own, numbered])
                return own if own_known is not None or numbered_known is None else numbered
        return own

    async def _read(self, chunk: Chunk, key: bytes | None) -> _Read:
        model = await self._model()
        if len(chunk.body) <= INLINE_BYTES:
            return self._read_for(model, chunk, key)
        return await asyncio.to_thread(self._read_for, model, chunk, key)

    async def _read_again(self, read: _Read, key: bytes | None) -> None:
        """Read a chunk for the model as it is held now, or for another key than was likely."""
        again = await self._read(read.chunk, key)
        read.model, read.key = again.model, again.key
        read.parsed, read.request = again.parsed, again.request

    def _read_for(self, model: Model, chunk: Chunk, key: bytes | None) -> _Read:
        parsed = parse_chunk(model.row_schema, self._head.content_type, chunk.body, labelled=True)
        if not parsed.row_indices:
            return _Read(chunk, model, key, parsed, None)
        fingerprint = None
        if key is not None:
            what = f"chunk {chunk.number}\0"
            fingerprint = fingerprint_of(self._head, self._query, chunk.body, what)
        request = Request.of(parsed.rows, key, fingerprint, parsed.batch_names)
        return _Read(chunk, model, key, parsed, request)

    async def _told(self, learning: _Learning) -> LearnedChunk:
        """What became of a chunk; to be asked of one after the other."""
        read = learning.read
        try:
            told, is_replayed = await asyncio.shield(learning.task)
        except RowsRefused as refused:
            told = self._none_of(read, refused)
        else:
            self._taken += 1
            self._replayed += is_replayed
        rows = read.parsed.count
        if read.parsed.errors:
            self._catalog.counters.saw_refused(self._model_id, len(read.parsed.errors))
        self.totals.add_at(told, rows, read.chunk.line)
        return LearnedChunk(**structs.asdict(told), chunk=read.chunk.number, bytes=read.chunk.ends)

    def _none_of(self, read: _Read, refused: RowsRefused) -> Learned:
        """Of a chunk of which no row was taken."""
        mistakes = None if read.model.row_schema.task == "regression" else 0
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

    async def _submit(self, read: _Read, journalled: asyncio.Event) -> tuple[Learned, bool]:
        while True:
            model = await self._model()
            if read.model is not model:
                await self._read_again(read, read.key)
                model = read.model
            parsed, request = read.parsed, read.request
            if request is None:
                if self._opening == read.chunk.number:  # it had good rows for a model that is gone
                    self._opening = None
                raise RowsRefused(parsed.count, len(parsed.errors), parsed.errors)
            key = await self._key_of(model, read.chunk.number)
            if read.key != key:
                await self._read_again(read, key)
                continue

            def stands(incarnation: str = model.record.incarnation) -> None:
                self._incarnation = incarnation
                journalled.set()

            request.on_journalled, request.is_followed = stands, True
            try:
                receipt = await model.submit(request)
            except ModelChanged:  # it was sent to one that is gone
                if self._incarnation is not None:
                    raise
                continue
            told = await learned_of(model, parsed, request, receipt, self._wants_scores)
            self._incarnation = model.record.incarnation
            return told


async def _next_of(chunks: AsyncIterator[Chunk]) -> Chunk | None:
    return await anext(chunks, None)


def _shutting_down() -> Problem:
    detail = "the server is shutting down; repeat the request with the same Idempotency-Key"
    return Problem(503, "shutting-down", detail, retry_after_s=1)


def check_asked(head: Head, wants_scores: bool, atomic: bool) -> None:
    """Raise Problem 422 for what cannot be had of a body that is learned chunk by chunk."""
    if atomic:
        detail = f"a body of more than {CHUNK_BYTES} bytes is learned as it arrives, not atomically"
        raise Problem(422, "invalid-query", detail)
    if wants_scores and not head.wants_lines:
        detail = (
            f"the scores of a body of more than {CHUNK_BYTES} bytes come as it is learned, with"
            " Accept: application/x-ndjson"
        )
        raise Problem(422, "invalid-query", detail)


def _own_key(key: str) -> bytes:
    return make_key(KeyKind.REQUEST, key)


def _numbered_key(key: str, number: int) -> bytes:
    return make_key(KeyKind.CHUNK, f"{number}:{key}")
