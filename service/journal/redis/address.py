"""Redis URLs of a store: one server, Sentinels or a Cluster.

    redis://[USER:PASSWORD@]HOST[:PORT][/DB]                                     one server
    redis+sentinel://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],.../SERVICE[/DB]    Sentinels
    redis+cluster://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT],...                  nodes of a Cluster

rediss instead of redis uses TLS for all connections. Options of redis-py's connections follow as
?NAME=VALUE&..., for example ssl_ca_certs. User and password are those of the servers; options for
the Sentinels have the prefix `sentinel_`: sentinel_username, sentinel_password.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from redis.asyncio import Connection
from redis.asyncio.connection import parse_url

Kind = Literal["standalone", "sentinel", "cluster"]
HostPort = tuple[str, int]
"""Host and port of a server."""

SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("standalone", False),
    "rediss": ("standalone", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
PORTS: dict[Kind, int] = {"standalone": 6379, "sentinel": 26379, "cluster": 6379}
_FORMS: dict[Kind, str] = {
    "standalone": "redis://HOST:PORT/DB",
    "sentinel": "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE/DB",
    "cluster": "redis+cluster://HOST:PORT,HOST:PORT",
}
_OF_SENTINELS = "sentinel_"


@dataclass(frozen=True)
class Address:
    """A parsed URL of a store.

    hosts         the server; or the Sentinels, or nodes of the Cluster, to ask first
    service       the service's name at the Sentinels
    options       keyword arguments of redis-py's `Connection` to servers
    of_sentinels  the same for connections to Sentinels
    """

    kind: Kind
    hosts: tuple[HostPort, ...]
    is_tls: bool = False
    service: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    of_sentinels: dict[str, Any] = field(default_factory=dict)


def parse_address(url: str) -> Address:
    """Parse the URL. Raises ValueError with the reason and without the password."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise ValueError(f"unknown scheme {scheme}://; use one of {', '.join(SCHEMES)}")
    kind, is_tls = SCHEMES[scheme]
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    user, _, listed = authority.rpartition("@")
    hosts = tuple(_where(kind, host) for host in listed.split(","))
    service, database = _path(kind, path)
    if kind == "standalone" and len(hosts) > 1:
        raise ValueError("redis:// has one server; use redis+sentinel:// or redis+cluster://")
    fields = [pair for pair in query.split("&") if pair]
    own = [pair for pair in fields if not pair.startswith(_OF_SENTINELS)]
    theirs = [pair.removeprefix(_OF_SENTINELS) for pair in fields if pair not in own]
    if theirs and kind != "sentinel":
        raise ValueError(f"option {theirs[0].partition('=')[0]!r} needs redis+sentinel://")
    return Address(
        kind,
        hosts,
        is_tls,
        service,
        _options(is_tls, user, own) | {"db": database},
        _options(is_tls, "", theirs + [pair for pair in own if pair.startswith("ssl_")]),
    )


def _where(kind: Kind, text: str) -> HostPort:
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text, str(PORTS[kind])
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ValueError(f"{text!r} is not HOST:PORT; write {_FORMS[kind]}")
    return host, int(port)


def _path(kind: Kind, path: str) -> tuple[str, int]:
    """The service and the database number."""
    parts = path.rstrip("/").split("/") if path.rstrip("/") else []
    service = parts.pop(0) if kind == "sentinel" and parts else ""
    if kind == "sentinel" and not service:
        raise ValueError(f"the name of the Sentinels' service is missing; write {_FORMS[kind]}")
    if kind == "cluster" and parts:
        raise ValueError(f"a Cluster has no database numbers; write {_FORMS[kind]}")
    if len(parts) > 1 or (parts and not (parts[0].isascii() and parts[0].isdigit())):
        raise ValueError(f"{path!r} does not end in a database number; write {_FORMS[kind]}")
    return service, int(parts[0]) if parts else 0


def _options(is_tls: bool, user: str, fields: list[str]) -> dict[str, Any]:
    """User, password and options, parsed by redis-py."""
    scheme = "rediss" if is_tls else "redis"
    user = f"{user}@" if user else ""
    options: dict[str, Any] = dict(parse_url(f"{scheme}://{user}host?{'&'.join(fields)}"))
    del options["host"]
    kind = options.pop("connection_class", Connection)
    try:
        kind(**options)
    except TypeError as error:
        raise ValueError(f"unknown option in the store's URL: {error}") from None
    return options
