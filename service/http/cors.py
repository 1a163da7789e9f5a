"""CORS: pages of other origins that may use the API."""

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

_REQUEST_HEADERS = (
    "authorization",
    "baggage",
    "content-type",
    "content-encoding",
    "dualstream-source",
    "idempotency-key",
    "if-match",
    "if-none-match",
    "last-event-id",
    "sentry-trace",
    "traceparent",
    "tracestate",
    "x-request-id",
)
_RESPONSE_HEADERS = (
    "etag",
    "retry-after",
    "idempotency-replayed",
    "dualstream-durability",
    "x-request-id",
)


def across_origins(app: ASGIApp, origins: str) -> ASGIApp:
    """`app` with CORS for these origins. Preflight requests need no key.

    Credentials of the browser, such as cookies, are never used: only an API key identifies a
    client.
    """
    return CORSMiddleware(
        app,
        allow_origins=[origin.strip() for origin in origins.split(",") if origin.strip()],
        allow_methods=("GET", "HEAD", "POST", "PUT", "DELETE"),
        allow_headers=_REQUEST_HEADERS,
        expose_headers=_RESPONSE_HEADERS,
    )
