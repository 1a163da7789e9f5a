"""Pages of other origins, which a browser lets call the API only where the server allows it."""

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
    """`app`, for these origins, too; a browser's question before a request needs no key.

    Nothing that a browser sends by itself, as a cookie, says who somebody is: only a key does.
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
