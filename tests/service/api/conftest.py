"""Requests that come second."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dualstream.service.models.model import Model
from dualstream.service.replica.requests import ControlRequest


@pytest.fixture
def overtaken(monkeypatch):
    """The next control comes behind what another worker does: it is refused where it stands."""
    true = Model.submit

    def by(action: Callable[[], Any]) -> None:
        left = [action]

        async def late(self: Model, request: Any) -> Any:
            if isinstance(request, ControlRequest) and left:
                done = await asyncio.to_thread(left.pop())
                assert done.status_code in (200, 202), done.text
            return await true(self, request)

        monkeypatch.setattr(Model, "submit", late)

    return by
