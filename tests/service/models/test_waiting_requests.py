"""WaitingRequests: requests that wait for their rows to be learned."""

import asyncio

import pytest

from dualstream.service.journal.protocol import OutcomeUnknown
from dualstream.service.models.waiting_requests import WaitingRequests


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_request_that_times_out_reports_an_unknown_outcome():
    now_s = 0.0
    waiting = WaitingRequests(1.0, lambda: now_s)
    first, second = asyncio.Future(), asyncio.Future()
    waiting.enter().future = first
    now_s = 0.5
    ticket = waiting.enter()
    ticket.future = second
    now_s = 1.2
    waiting.expire()
    assert isinstance(first.exception(), OutcomeUnknown) and not second.done()
    assert len(waiting) == 2 and waiting.oldest_s == 1.2
    waiting.leave(ticket)
    assert len(waiting) == 1 and waiting.last_wait_s == pytest.approx(0.7)


def test_requests_that_wait_together_are_counted_one_by_one():
    waiting = WaitingRequests(1.0, lambda: 5.0)
    ticket = waiting.enter()
    waiting.count(ticket, 4)
    waiting.count(ticket, 3)
    other = waiting.enter()
    waiting.expire()  # no future yet: they are not submitted
    assert len(waiting) == 4
    waiting.leave(ticket)
    assert len(waiting) == 1
    waiting.leave(other)
    assert len(waiting) == 0 == waiting.oldest_s
