"""Answers to exceptions of FastAPI's routes: problem documents, also for the framework's errors."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.types import Scope

from dualstream.service.codecs import media_type
from dualstream.service.concurrency import drop_traceback
from dualstream.service.http.access import feature_of, not_allowed
from dualstream.service.http.exceptions_to_problems import as_problem, problem_of
from dualstream.service.http.request_body import BodyRefused
from dualstream.service.journal.protocol import JournalError
from dualstream.service.journal.record import RecordError
from dualstream.service.observability.logs import REQUEST_ID
from dualstream.solvers import SolverError
from dualstream.wire.problem_json import MEDIA_TYPE, Problem, RowError


def handle_errors(app: FastAPI) -> None:
    """Answer all exceptions of the application's routes with problem documents."""
    for kind in (
        Problem,
        SolverError,
        JournalError,
        RecordError,
        HTTPException,
        RequestValidationError,
        Exception,
    ):
        app.add_exception_handler(kind, _answer_problem)


def _without_slash(scope: Scope) -> Response | None:
    """Redirect of a path that ends with a slash to the one without it; None for another path.

    It is relative, so it stays under the prefix and the TLS of a proxy. Starlette's is not.
    """
    path = scope["raw_path"].decode("latin-1")
    if len(path) < 2 or not path.endswith("/"):
        return None
    query = scope["query_string"].decode("latin-1")
    to = f"../{path[:-1].rpartition('/')[2]}" + (f"?{query}" if query else "")
    return Response(status_code=307, headers={"location": to})


async def _answer_problem(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 404:
        redirect = _without_slash(request.scope)
        if redirect is not None:
            return redirect
    problem = as_problem(error) or _of_absent_feature(request, error)
    problem = problem or _of_framework(request, error)
    if problem is not None and problem.status == 405:
        problem = not_allowed(request.method, request.url.path)
    if problem is not None:
        drop_traceback(error)
    else:
        problem = problem_of(error, request.scope)
    body = problem.body(request.url.path, REQUEST_ID.get())
    return Response(body, problem.status, problem.headers(), media_type=MEDIA_TYPE)


def _row_error(error: Any) -> RowError:
    """A validation error of the framework, in this API's words."""
    reason = error["msg"].removeprefix("Value error, ")
    if error["loc"] == ("body",) and error["type"] == "missing":
        reason = "a JSON body is required"
    return RowError(0, "/" + "/".join(map(str, error["loc"])), reason)


def _of_absent_feature(request: Request, error: Exception) -> Problem | None:
    """Problem 404 for a route of a feature that this server lacks."""
    if not isinstance(error, HTTPException) or error.status_code not in (404, 405):
        return None
    name = feature_of(request.method, request.url.path)
    if name is None or name in request.app.state.features:
        return None
    return Problem(404, "not-found", f"this server lacks the feature {name!r}")


def _of_framework(request: Request, error: Exception) -> Problem | None:
    if isinstance(error, RequestValidationError):
        errors: list[Any] = list(error.errors())
        if errors[0]["loc"] == ("body",) and errors[0]["type"] != "missing":
            try:
                kind, _ = media_type(request.headers.get("content-type"))
            except Problem as refused:
                return refused
            if kind != "application/json":
                detail = f"{kind} is not accepted; send application/json"
                return Problem(415, "unsupported-media-type", detail)
        if errors[0]["type"] == "json_invalid":
            return Problem(
                400, "malformed-body", f"the body is not JSON: {errors[0]['ctx']['error']}"
            )
        row_errors = [_row_error(one) for one in errors]
        field = ".".join(map(str, errors[0]["loc"][1:]))
        detail = f"{field}: {row_errors[0].reason}" if field else row_errors[0].reason
        return Problem(422, "invalid-request", detail, row_errors)
    if isinstance(error, BodyRefused):
        return error.problem
    if isinstance(error, HTTPException):
        slug = {400: "malformed-body", 404: "not-found"}.get(error.status_code, "refused")
        detail = "no such route; /docs lists all" if slug == "not-found" else str(error.detail)
        return Problem(error.status_code, slug, detail)
    return None
