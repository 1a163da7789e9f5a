"""Checks of a request's head, before its body is read and its key is looked up."""

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

from dualstream.service.http.body_memory import CONNECTION
from dualstream.service.http.overload import REFUSE_AFTER_S, AdmissionControl, kind_of, overloaded
from dualstream.service.http.request_head import path_problem, repeated_header
from dualstream.service.http.send import send_problem, without_body


class HeadChecks:
    """ASGI middleware: serves HEAD as GET; refuses invalid heads, and requests under overload."""

    def __init__(self, app: ASGIApp, admission: AdmissionControl) -> None:
        self._app = app
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "HEAD":
            scope, send = {**scope, "method": "GET"}, without_body(send)
        path = scope["path"]
        problem = path_problem(scope) or repeated_header(scope)
        if problem is None:
            kind = kind_of(scope["method"], path)
            if kind is None or self._admission.admits(kind, scope.get(CONNECTION)):
                await self._app(scope, receive, send)
                return
            problem = overloaded(kind)
            await asyncio.sleep(REFUSE_AFTER_S)
        await send_problem(send, problem, path)
