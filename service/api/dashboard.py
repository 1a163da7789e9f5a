"""The dashboard and the API's description: pages and scripts, from this package alone.

The policy lets it load nothing from elsewhere and run no script that stands in a page, so that a
name or a label in the data cannot become code in a browser.
"""

import asyncio
import sys
from pathlib import Path

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import FileResponse
from starlette.datastructures import MutableHeaders
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

FOLDER = Path(__file__).parent.parent / "static"

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # A browser asks whether it has the newest each time, and mostly hears that it has.
    "cache-control": "no-cache",
}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def dashboard() -> FileResponse:
    """The page."""
    return FileResponse(FOLDER / "index.html", headers=HEADERS)


@router.get("/docs")
async def docs() -> FileResponse:
    """The API's description, to read and to try; Swagger UI carries its pictures in its styles."""
    policy = POLICY.replace("img-src 'self'", "img-src 'self' data:")
    headers = HEADERS | {"content-security-policy": policy}
    return FileResponse(FOLDER / "docs.html", headers=headers)


@router.get("/openapi.json")
async def description(request: Request) -> Response:
    """The API's description as a document.

    It takes half a second to write, and nobody needs a key: it is written once, in a thread.
    """
    state = request.app.state
    if getattr(state, "description", None) is None:
        state.description = asyncio.ensure_future(asyncio.to_thread(_written, request.app))
    written = await asyncio.shield(state.description)
    return Response(written, media_type="application/json")


def _written(app: FastAPI) -> bytes:
    # The loop asks for the interpreter's lock many times in each request, and would wait for it as
    # long as a thread may keep it: by default ten times as long as here.
    kept_s = sys.getswitchinterval()
    sys.setswitchinterval(0.1 * kept_s)
    try:
        return msgspec.json.encode(app.openapi())
    finally:
        sys.setswitchinterval(kept_s)


class DashboardFiles(StaticFiles):
    """What the page loads, with the same headers."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        await super().__call__(scope, receive, send_with_headers)
