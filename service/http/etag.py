"""ETags: If-Match, If-None-Match, 304 Not Modified."""

from collections.abc import Mapping, Sequence

from fastapi import Response

from dualstream.service.models.model import Model


def etag_of(seq: int, chain: str) -> str:
    """ETag of a model's state: seq and beginning of the chain."""
    return f'"{seq}-{chain[:8]}"'


def matches_etag(lines: Sequence[str] | None, etag: str) -> bool:
    """Whether If-Match or If-None-Match, given as all its lines, matches this ETag; * matches any.

    Weak ETags (W/) match too: a proxy that compresses answers weakens them, and the state is equal.
    """
    if lines is None:
        return False
    named = [name.strip().removeprefix("W/") for name in ",".join(lines).split(",")]
    return etag in named or matches_any(lines)


def matches_any(lines: Sequence[str]) -> bool:
    """Whether If-Match or If-None-Match is *."""
    return ",".join(lines).strip() == "*"


def etag_header(model: Model) -> dict[str, str]:
    """ETag of the current state, unless it is stale. Call it while the replica serves."""
    replica = model.replica
    return {"etag": etag_of(replica.seq, replica.chain)} if model.stale_s is None else {}


def not_modified(
    headers: Mapping[str, str], if_none_match: Sequence[str] | None
) -> Response | None:
    """304 if the client's ETag is current, otherwise None."""
    etag = headers.get("etag")
    if etag is None or not matches_etag(if_none_match, etag):
        return None
    return Response(status_code=304, headers={"etag": etag})
