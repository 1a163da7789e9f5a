"""CORS: lets browser pages of other origins call the API."""

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

_REQUEST_HEADERS = (
    "authorization",
    "content-type",
    "content-encoding",
    "idempotency-key",
    "if-match",
    "if-none-match",
    "last-event-id",
)
_RESPONSE_HEADERS = ("etag", "retry-after", "idempotency-replayed", "dualstream-durability")


def across_origins(app: ASGIApp, origins: str | None) -> ASGIApp:
    """`app` with CORS for these origins. Preflight requests need no key.

    Credentials of the browser, such as cookies, are never used: only an API key identifies a
    client.
    """
    if origins is None:
        return app
    return CORSMiddleware(
        app,
        allow_origins=[origin.strip() for origin in origins.split(",") if origin.strip()],
        allow_methods=("GET", "POST", "PUT", "DELETE"),
        allow_headers=_REQUEST_HEADERS,
        expose_headers=_RESPONSE_HEADERS,
    )
