"""Clients that retry forever: each request is sent, with its key or ids, until it is answered."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from tests.chaos.samples import SPECS, Ask, Spec, ask, has_names
from tests.history import Acknowledged

PAUSE_S = 0.15
"""Between two requests of a client, at most: it leaves processes that start the time for it."""
STOPPING_S = 60.0
RETRY_S = 0.02
LONGEST_RETRY_S = 0.3
"""Limit of the retry delay: faster retries delay the start of a server."""


@dataclass
class Told:
    """Answers of one model to all clients."""

    acknowledged: list[Acknowledged] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    answers: list[dict[str, Any]] = field(default_factory=list)
    """The first answers to requests with a key."""


class Clients:
    """`count` clients of one address, until they are stopped.

    may_lose   acknowledged rows may be lost; requests are then not repeated to compare answers
    specs      of the models, by id
    """

    def __init__(
        self,
        url: str,
        count: int,
        seed: int,
        may_lose: bool = False,
        specs: Mapping[str, Spec] = SPECS,
    ) -> None:
        self._url, self._specs = url, specs
        self._may_lose = may_lose
        self._seed = seed
        self.got: dict[str, Told] = defaultdict(Told)
        self.requests = self.retries = self.replayed = 0
        self.answered_at = [0.0] * count
        self.refusals = [""] * count
        """Each client's last error since its last answer."""
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Create the models and start the clients."""
        async with httpx.AsyncClient(timeout=60) as client:
            for model, spec in self._specs.items():
                (await client.put(f"{self._url}/models/{model}", json=spec)).raise_for_status()
        self._tasks = [
            asyncio.create_task(self._run(number)) for number in range(len(self.answered_at))
        ]

    async def stop(self) -> None:
        """Let each client finish its request.

        Raises a client's error, and TimeoutError.
        """
        self._is_stopping = True
        try:
            async with asyncio.timeout(STOPPING_S):
                await asyncio.gather(*self._tasks)
        except TimeoutError:
            raise TimeoutError(
                f"clients were not answered in {STOPPING_S} s: {self.refusals}"
            ) from None

    async def all_answered(self, since: float, within_s: float = 60.0) -> float:
        """Wait until each client is answered after `moment`; returns the delay in seconds.

        Raises a client's error, and TimeoutError.
        """
        while min(self.answered_at) <= since:
            for task in self._tasks:
                if task.done():
                    task.result()
            if time.monotonic() > since + within_s:
                later = sum(at <= since for at in self.answered_at)
                raise TimeoutError(
                    f"{later} clients were not answered in {within_s} s: {self.refusals}"
                )
            await asyncio.sleep(0.005)
        return max(self.answered_at) - since

    async def _run(self, number: int) -> None:
        chance = Random(f"{self._seed} {number}")
        # Shorter than a request may take: requests to a stopped process are sent again.
        async with httpx.AsyncClient(timeout=5) as client:
            made = 0
            while not self._is_stopping:
                request = ask(chance, number, made, self._specs)
                made += 1
                self.got[request.model].sent |= request.sent
                answer = await self._send(client, request, number)
                self._take(request, answer)
                if chance.random() < 0.05 and not self._may_lose:
                    self._compare(request, answer, await self._send(client, request, number))
                if chance.random() < 0.1:
                    await self._read_own(client, request.model, answer["seq"])
                await asyncio.sleep(chance.random() * PAUSE_S)

    async def _send(self, client: httpx.AsyncClient, request: Ask, number: int) -> dict[str, Any]:
        pause = RETRY_S
        while True:
            self.requests += 1
            url = f"{self._url}/models/{request.model}/learn"
            try:
                answer = await client.post(url, json=request.body, headers=request.headers)
                if answer.status_code == 200:
                    self.answered_at[number], self.refusals[number] = time.monotonic(), ""
                    got: dict[str, Any] = answer.json()
                    return got
                assert answer.status_code == 503, f"{answer.status_code} {answer.text}"
                self.refusals[number] = answer.text
            except httpx.TransportError as error:
                self.refusals[number] = repr(error)
            self.retries += 1
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_RETRY_S)

    async def _read_own(self, client: httpx.AsyncClient, model: str, seq: int) -> None:
        """Any worker that answers has the acknowledged rows, or says that it has not."""
        row = {"x.sex": "Male"} if has_names(self._specs[model]) else {"x": "1:1"}
        url = f"{self._url}/models/{model}/predict"
        try:
            answer = await client.get(url, params={**row, "min_seq": seq})
        except httpx.TransportError:
            return
        if answer.status_code != 503:
            assert answer.status_code == 200, f"{answer.status_code} {answer.text}"
            assert answer.json()["seq"] >= seq

    def _take(self, request: Ask, got: dict[str, Any]) -> None:
        of_model = self.got[request.model]
        if request.key is not None:
            assert got["count"] == len(request.ids), got
            of_model.acknowledged.append(Acknowledged(request.key, got["seq"], got["count"]))
            of_model.answers.append(got)
            return
        # Rows with known ids are at the seqs of the answer, new rows are at its end.
        stands = {left["index"]: left["seq"] for left in got.get("duplicates", ())}
        new = [index for index in range(len(request.ids)) if index not in stands]
        assert len(new) == got["count"], got
        stands |= dict(zip(new, range(got["seq"] - len(new) + 1, got["seq"] + 1), strict=True))
        of_model.acknowledged += [
            Acknowledged(str(request.ids[index]), seq) for index, seq in stands.items()
        ]

    def _compare(self, request: Ask, got: dict[str, Any], again: dict[str, Any]) -> None:
        """A repeated key returns its first answer; repeated ids are reported as known."""
        self.replayed += 1
        assert again["duplicate"] is True
        if request.key is None:
            assert again["count"] == 0 and len(again["duplicates"]) == len(request.ids)
        else:
            assert again == got | {"duplicate": True}, (got, again)
