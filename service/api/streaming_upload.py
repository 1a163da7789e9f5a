"""Streaming upload: a body of any length is learned chunk by chunk while it arrives.

A pipeline of four stages: while one chunk is learned, the next is appended, the third is parsed and
encoded, and the bytes of the fourth arrive. The sender is not read further, so memory is bounded by
a few chunks. Each chunk is a learn with its own key, and starts after the previous chunk is in the
journal. So an interrupted upload leaves complete first chunks, and a repeat with the same key
resumes after them.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from msgspec import structs

from dualstream.service.api.request_rows import count_refused, fingerprint_of, is_parsed_inline
from dualstream.service.api.responses import NO_ROWS, RowsRefused, first_errors, learned_of
from dualstream.service.codecs import ParsedRows, parse_chunk
from dualstream.service.concurrency import background_task
from dualstream.service.http.exceptions_to_problems import as_problem
from dualstream.service.http.rate_limits import KeyLimits
from dualstream.service.http.request_head import Head
from dualstream.service.journal.protocol import ModelChanged
from dualstream.service.journal.record import KeyKind, make_key
from dualstream.service.models.model import Model
from dualstream.service.models.registry import ModelRegistry
from dualstream.service.replica.requests import Request
from dualstream.wire.chunking.chunks import CHUNK_BYTES, Chunk
from dualstream.wire.problem_json import Problem, RowError
from dualstream.wire.schemas import Learned, LearnedChunk, LearnedStream
from dualstream.wire.totals import Totals


@dataclass(slots=True)
class _ParsedChunk:
    """A chunk and its rows, parsed by the row schema of `model`."""

    chunk: Chunk
    model: Model
    key: bytes | None
    """The stored key of its request; None if the upload has no key."""
    rows: ParsedRows
    request: Request | None
    """The journal request; None if no row is good."""


@dataclass(slots=True)
class _PendingChunk:
    """A chunk that is being appended and learned."""

    parsed_chunk: _ParsedChunk
    journalled: asyncio.Event
    """Set once the append has succeeded or failed."""
    task: "asyncio.Task[tuple[Learned, bool]]"
    """The answer, and whether it repeats the first answer to the chunk's key."""


class Upload:
    """One upload: parses, submits and learns its chunks in order."""

    def __init__(
        self,
        registry: ModelRegistry,
        model_id: str,
        head: Head,
        query: dict[str, str],
        key: str | None,
        wants_scores: bool,
        limits: KeyLimits | None = None,
    ) -> None:
        self._registry = registry
        self._model_id = model_id
        self._head = head
        self._query = query
        self._key = key
        self._wants_scores = wants_scores
        self._limits = limits
        self._incarnation: str | None = None
        self._first_good: int | None = None
        """Number of the first chunk with a good row; this chunk has the request's own key."""
        self._accepted = self._replayed = 0
        self._arriving: asyncio.Task[Chunk | None] | None = None
        self._parsing: asyncio.Task[_ParsedChunk | None] | None = None
        self._is_stopped = False
        self.totals = Totals()

    async def learn(self, chunks: AsyncIterator[Chunk]) -> AsyncGenerator[LearnedChunk]:
        """The answer of each chunk, as soon as it is acknowledged.

        Raises Problem, with `seq` and `chunks` of the acknowledged part, for any expected failure.
        """
        try:
            async with aclosing(self._learn_each(chunks)) as learned:
                async for result in learned:
                    yield result
        except Exception as error:
            problem = as_problem(error)
            if problem is None:
                raise
            problem.extra |= {"seq": self.totals.seq, "chunks": self.totals.chunks}
            if problem is error:
                raise
            raise problem from error
        finally:  # `chunks` cannot be closed while this task runs it
            if self._arriving is not None and not self._arriving.done():
                self._arriving.cancel()
                await asyncio.wait([self._arriving])

    def result(self) -> LearnedStream:
        """The totals of all chunks. Raises RowsRefused if no row was accepted."""
        totals = self.totals
        if totals.seq:
            return totals.result(self._model_id)
        if not totals.rows:
            raise Problem(422, "invalid-rows", NO_ROWS)
        errors = [RowError(**error) for error in totals.errors]
        raise RowsRefused(totals.rows, totals.rejected or 0, errors)

    @property
    def is_replayed(self) -> bool:
        """Whether every chunk with accepted rows repeated its first answer."""
        return 0 < self._accepted == self._replayed

    async def _learn_each(self, chunks: AsyncIterator[Chunk]) -> AsyncGenerator[LearnedChunk]:
        learned: _PendingChunk | None = None  # in the journal
        pending: _PendingChunk | None = None
        while True:
            parsing = self._parsing = background_task(self._parse_next(chunks))
            try:
                if learned is not None:
                    yield await self._result(learned)
                if pending is not None:
                    await pending.journalled.wait()
                learned = pending
                if self._is_stopped:
                    parsing.cancel()
                while not parsing.done():
                    awaited = [parsing] if learned is None else [parsing, learned.task]
                    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                    if learned is not None and learned.task.done():
                        yield await self._result(learned)
                        learned = None
                ends = parsing.cancelled() or parsing.exception() or parsing.result() is None
                if learned is not None and (ends or learned.task.done()):
                    yield await self._result(learned)
                    learned = None
                if parsing.cancelled():
                    detail = "the server is shutting down; repeat the request with the same"
                    detail += " Idempotency-Key"
                    raise Problem(503, "shutting-down", detail, retry_after_s=1)
                parsed_chunk = parsing.result()
            finally:
                if not parsing.done():
                    parsing.cancel()
                    await asyncio.wait([parsing])
            if parsed_chunk is None:
                return
            pending = self._begin(parsed_chunk)

    async def _parse_next(self, chunks: AsyncIterator[Chunk]) -> _ParsedChunk | None:
        arriving = self._arriving or background_task(_next_chunk(chunks))
        chunk = await arriving
        if chunk is None:
            return None
        self._arriving = background_task(_next_chunk(chunks))
        parsed_chunk = await self._parse(chunk, self._key_of(chunk.number))
        if self._limits is not None:
            await self._limits.wait_for_rows(parsed_chunk.rows.count)
        return parsed_chunk

    def stop(self) -> None:
        """Stop reading, at shutdown: the server does not wait for the end of the body."""
        self._is_stopped = True
        if self._parsing is not None:
            self._parsing.cancel()

    def _begin(self, parsed_chunk: _ParsedChunk) -> _PendingChunk:
        """Start to learn a chunk, in a task that ends even if the request is cancelled."""
        if parsed_chunk.request is not None:
            # Before the next chunk is parsed, which needs its key.
            self._claim_request_key(parsed_chunk.chunk.number)
        journalled = asyncio.Event()
        task = background_task(self._submit(parsed_chunk, journalled))
        task.add_done_callback(lambda done: journalled.set())
        return _PendingChunk(parsed_chunk, journalled, task)

    async def _model(self) -> Model:
        """The current model. Raises ModelChanged if earlier chunks went to a deleted one."""
        model = await self._registry.get(self._model_id)
        if self._incarnation not in (None, model.record.incarnation):
            raise ModelChanged(self._model_id)
        return model

    def _claim_request_key(self, number: int) -> None:
        """Give a chunk with good rows the request's own key. Call it in chunk order.

        The first such chunk has it, so that a key of another request is detected. A chunk without a
        good row is not submitted and has no key.
        """
        if self._first_good is None:
            self._first_good = number

    def _key_of(self, number: int) -> bytes | None:
        """The stored key of a chunk if it has a good row, which may not be known yet."""
        if self._key is None:
            return None
        if self._first_good in (None, number):
            return make_key(KeyKind.REQUEST, self._key)
        return make_key(KeyKind.CHUNK, f"{number}:{self._key}")

    async def _parse(self, chunk: Chunk, key: bytes | None) -> _ParsedChunk:
        model = await self._model()
        if is_parsed_inline(model.row_schema, chunk.body):
            return self._parse_for(model, chunk, key)
        return await asyncio.to_thread(self._parse_for, model, chunk, key)

    async def _parse_again(self, parsed_chunk: _ParsedChunk, key: bytes | None) -> None:
        """Parse a chunk again, for the current model or another key."""
        again = await self._parse(parsed_chunk.chunk, key)
        parsed_chunk.model, parsed_chunk.key = again.model, again.key
        parsed_chunk.rows, parsed_chunk.request = again.rows, again.request

    def _parse_for(self, model: Model, chunk: Chunk, key: bytes | None) -> _ParsedChunk:
        parsed = parse_chunk(model.row_schema, self._head.content_type, chunk.body, labelled=True)
        if not parsed.row_indices:
            return _ParsedChunk(chunk, model, key, parsed, None)
        fingerprint = None
        if key is not None:
            what = f"chunk {chunk.number}\0"
            fingerprint = fingerprint_of(self._head, self._query, chunk.body, what)
        request = Request.of(parsed.rows, key, fingerprint, parsed.batch_names)
        return _ParsedChunk(chunk, model, key, parsed, request)

    async def _result(self, pending: _PendingChunk) -> LearnedChunk:
        """The answer of a chunk. Call it in chunk order."""
        parsed_chunk = pending.parsed_chunk
        try:
            result, is_replayed = await asyncio.shield(pending.task)
        except RowsRefused as refused:
            result = self._refused_chunk(parsed_chunk, refused)
        else:
            self._accepted += 1
            self._replayed += is_replayed
        rows = parsed_chunk.rows.count
        count_refused(self._registry.counters, parsed_chunk.model, parsed_chunk.rows)
        self.totals.add_at(result, rows, parsed_chunk.chunk.line)
        return LearnedChunk(
            **structs.asdict(result), chunk=parsed_chunk.chunk.number, bytes=parsed_chunk.chunk.ends
        )

    def _refused_chunk(self, parsed_chunk: _ParsedChunk, refused: RowsRefused) -> Learned:
        """The answer of a chunk without an accepted row."""
        mistakes = None if parsed_chunk.model.row_schema.task == "regression" else 0
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

    async def _submit(
        self, parsed_chunk: _ParsedChunk, journalled: asyncio.Event
    ) -> tuple[Learned, bool]:
        while True:
            model = await self._model()
            if parsed_chunk.model is not model:
                await self._parse_again(parsed_chunk, parsed_chunk.key)
                model = parsed_chunk.model
            parsed, request = parsed_chunk.rows, parsed_chunk.request
            if request is None:
                if self._first_good == parsed_chunk.chunk.number:
                    self._first_good = None  # it had good rows for a replaced model
                raise RowsRefused(parsed.count, len(parsed.errors), parsed.errors)
            self._claim_request_key(parsed_chunk.chunk.number)
            key = self._key_of(parsed_chunk.chunk.number)
            if parsed_chunk.key != key:
                await self._parse_again(parsed_chunk, key)
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
            result = await learned_of(model, parsed, request, receipt, self._wants_scores)
            self._incarnation = model.record.incarnation
            return result


async def _next_chunk(chunks: AsyncIterator[Chunk]) -> Chunk | None:
    return await anext(chunks, None)


def check_streamable(head: Head, wants_scores: bool, atomic: bool) -> None:
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
