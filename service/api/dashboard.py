"""Static files of the dashboard and of /docs, and the OpenAPI document.

The content security policy allows neither external resources nor inline scripts. So a feature name
or a label can never run as code in a browser.
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

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    # The browser revalidates each file and mostly gets 304.
    "cache-control": "no-cache",
}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def dashboard() -> FileResponse:
    """The dashboard."""
    return FileResponse(FOLDER / "index.html", headers=HEADERS)


@router.get("/docs")
async def docs() -> FileResponse:
    """Swagger UI. Its styles contain images as data: URLs, which the policy allows here."""
    policy = POLICY.replace("img-src 'self'", "img-src 'self' data:")
    headers = HEADERS | {"content-security-policy": policy}
    return FileResponse(FOLDER / "docs.html", headers=headers)


@router.get("/openapi.json")
async def description(request: Request) -> Response:
    """The OpenAPI document.

    Generating it takes half a second and needs no key, so it is generated once, in a thread.
    """
    state = request.app.state
    if getattr(state, "description", None) is None:
        state.description = asyncio.ensure_future(asyncio.to_thread(_written, request.app))
    written = await asyncio.shield(state.description)
    return Response(written, media_type="application/json")


def _written(app: FastAPI) -> bytes:
    # Shorter switch interval of the GIL: each request acquires the GIL many times, and would wait
    # a full interval each time while this thread computes.
    kept_s = sys.getswitchinterval()
    sys.setswitchinterval(0.1 * kept_s)
    try:
        return msgspec.json.encode(app.openapi())
    finally:
        sys.setswitchinterval(kept_s)


class DashboardFiles(StaticFiles):
    """Static files, with the security headers of the pages."""

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
