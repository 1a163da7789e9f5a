"""`Client` and `AsyncClient`: perform the actions that the methods yield."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import wraps
from typing import Any, Generic, Self, TypeAlias, TypeVar, get_args

import httpx

from dualstream.client.calls import (
    Action,
    Call,
    EventReader,
    Steps,
    Wait,
    model_path,
    query_of,
    trace_headers,
    with_api_key,
)
from dualstream.client.errors import NoRows, Unreachable
from dualstream.client.learn import LearnMethods
from dualstream.client.manage import ManageMethods
from dualstream.client.method import Awaited, Blocking, method
from dualstream.client.predict import PredictMethods
from dualstream.client.proxies import proxy_of, shown, valid_proxy
from dualstream.client.responses import Event
from dualstream.client.resumable_files import RowFile
from dualstream.wire.schemas import PredictedMany

T = TypeVar("T")
Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)

URL = "http://127.0.0.1:8000"
PATIENCE_S = 30.0
# The first model of an algorithm on a machine waits until its kernels are compiled.
TIMEOUT_S = 120.0
OnRetry: TypeAlias = Callable[[str, float], None]
"""Called with the reason and the seconds that are left for retries."""


class _Connected(PredictMethods, ManageMethods, Generic[Http]):
    """Options and connections of both clients."""

    def __init__(
        self,
        url: str = URL,
        *,
        api_key: str | None = None,
        patience_s: float = PATIENCE_S,
        timeout_s: float = TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
        http: Http | None = None,
        on_retry: OnRetry | None = None,
    ) -> None:
        self._patience_s = patience_s
        self._on_retry = on_retry
        proxy = None if http else proxy_of(url)
        self._proxy = shown(proxy)
        with valid_proxy():
            self._http: Http = http or self._connect(
                proxy, base_url=url, timeout=timeout_s, headers=with_api_key(headers, api_key)
            )

    def _connect(self, proxy: str | None, **options: Any) -> Http:
        raise NotImplementedError


class Client(Blocking, LearnMethods[Iterable[Any]], _Connected[httpx.Client]):
    """Blocking client of the server at `url`; `with Client() as client:` closes its connections.

    A request that fails, or gets no answer of the server itself, or 408, 421, 425, 429, 502, 503 or
    504, is retried for `patience_s`. Every learn has an idempotency key, so a retry learns nothing
    twice. `on_retry` is called with the reason and
    the seconds that are left before each retry. `api_key` defaults to the environment's
    DUALSTREAM_API_KEY. `http` is your own httpx.Client, with its own headers.

    Every method raises Refused for an error response, Unreachable without a response, and BadInput
    for input that cannot be sent.
    """

    def _connect(self, proxy: str | None, **options: Any) -> httpx.Client:
        return httpx.Client(transport=httpx.HTTPTransport(proxy=proxy), **options)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def events(self, model: str, *, every_ms: int | None = None) -> Iterator[Event]:
        """Events of a model while it learns, until it is deleted or the server stops.

        Raises Unreachable if the connection breaks.
        """
        path, query = model_path(model, "events"), query_of(every_ms=every_ms)
        reader = EventReader()
        try:
            with self._http.stream("GET", path, params=query, headers=trace_headers()) as response:
                if response.status_code >= 300:
                    body = response.read()
                    Call("GET", path, None).read(response.status_code, response.headers, body)
                for line in response.iter_lines():
                    event = reader.line(line)
                    if event is not None:
                        yield event
        except httpx.TransportError as lost:
            raise Unreachable(f"the event stream broke: {lost}") from lost

    def predict_file(
        self, model: str, file: RowFile, *, min_seq: int | None = None, version: str | None = None
    ) -> Iterator[PredictedMany]:
        """Score the rows of a file, chunk by chunk; labels are skipped.

        Raises NoRows for a file without rows.
        """
        query, has_rows = query_of(min_seq=min_seq, version=version), False
        for piece in file.pieces():
            scored = self._run(self._predict_piece(model, file, piece, query))
            if scored is not None:
                has_rows = True
                yield scored
        if not has_rows:
            raise NoRows(f"{file.name}: the file has no rows")

    def _run(self, work: Call[T] | Steps[T]) -> T:
        """Perform the actions of a method and return its result."""
        with closing(self._do(work) if isinstance(work, Call) else work) as steps:
            try:
                action = next(steps)
                while True:
                    try:
                        result = self._perform(action)
                    except Exception as error:
                        action = steps.throw(error)
                    else:
                        action = steps.send(result)
            except StopIteration as ended:
                answer: T = ended.value
                return answer

    def _perform(self, action: Action) -> Any:
        if isinstance(action, Call):
            return self._http.request(**action.request())
        if isinstance(action, Wait):
            if self._on_retry is not None:
                self._on_retry(action.reason, action.left_s)
            return time.sleep(action.seconds)
        return next(action.items, None)  # type: ignore[arg-type]


class AsyncClient(
    Awaited, LearnMethods[Iterable[Any] | AsyncIterable[Any]], _Connected[httpx.AsyncClient]
):
    """As Client, with methods to await; `async with AsyncClient() as client:` closes it."""

    def _connect(self, proxy: str | None, **options: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(proxy=proxy), **options)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def events(self, model: str, *, every_ms: int | None = None) -> AsyncIterator[Event]:
        """Events of a model while it learns, until it is deleted or the server stops.

        Raises Unreachable if the connection breaks.
        """
        path, query = model_path(model, "events"), query_of(every_ms=every_ms)
        reader = EventReader()
        try:
            async with self._http.stream(
                "GET", path, params=query, headers=trace_headers()
            ) as response:
                if response.status_code >= 300:
                    body = await response.aread()
                    Call("GET", path, None).read(response.status_code, response.headers, body)
                async for line in response.aiter_lines():
                    event = reader.line(line)
                    if event is not None:
                        yield event
        except httpx.TransportError as lost:
            raise Unreachable(f"the event stream broke: {lost}") from lost

    async def predict_file(
        self, model: str, file: RowFile, *, min_seq: int | None = None, version: str | None = None
    ) -> AsyncIterator[PredictedMany]:
        """Score the rows of a file, chunk by chunk; labels are skipped.

        Raises NoRows for a file without rows.
        """
        query, has_rows = query_of(min_seq=min_seq, version=version), False
        pieces = file.pieces()
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            scored = await self._run(self._predict_piece(model, file, piece, query))
            if scored is not None:
                has_rows = True
                yield scored
        if not has_rows:
            raise NoRows(f"{file.name}: the file has no rows")

    async def _run(self, work: Call[T] | Steps[T]) -> T:
        with closing(self._do(work) if isinstance(work, Call) else work) as steps:
            try:
                action = next(steps)
                while True:
                    try:
                        result = await self._perform(action)
                    except Exception as error:
                        action = steps.throw(error)
                    else:
                        action = steps.send(result)
            except StopIteration as ended:
                answer: T = ended.value
                return answer

    async def _perform(self, action: Action) -> Any:
        if isinstance(action, Call):
            return await self._http.request(**action.request())
        if isinstance(action, Wait):
            if self._on_retry is not None:
                self._on_retry(action.reason, action.left_s)
            return await asyncio.sleep(action.seconds)
        if isinstance(action.items, AsyncIterator):
            return await anext(action.items, None)
        if action.reads_file:
            return await asyncio.to_thread(next, action.items, None)
        return next(action.items, None)


def _blocking(steps: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(steps)
    def call(self: Client, *args: Any, **kwargs: Any) -> Any:
        return self._run(steps(self, *args, **kwargs))

    return call


def _awaited(steps: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(steps)
    async def call(self: AsyncClient, *args: Any, **kwargs: Any) -> Any:
        return await self._run(steps(self, *args, **kwargs))

    return call


def _add_methods(client: type, made: Callable[[Callable[..., Any]], Any]) -> None:
    """Replace each `method` by a function that performs its actions."""
    for name, member in inspect.getmembers_static(client):
        if isinstance(member, method):
            function = made(member.steps)
            signature = inspect.signature(member.steps)
            # The last argument of Call[T] and of Generator[..., ..., T] is the result.
            result = get_args(signature.return_annotation)[-1]
            function.__signature__ = signature.replace(return_annotation=result)
            function.__qualname__ = f"{client.__name__}.{name}"
            setattr(client, name, function)


_add_methods(Client, _blocking)
_add_methods(AsyncClient, _awaited)
