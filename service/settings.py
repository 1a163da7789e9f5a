"""Settings of a server, read once from the environment and the flags of `dualstream serve`.

Every field is also a flag: DUALSTREAM_MAX_BODY_BYTES = --max-body-bytes. Names hold the units.
"""

import ipaddress
import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from dualstream.service.journal.durability_levels import check_level

PREFIX = "DUALSTREAM_"
MAX_AUDIT_DAYS = 36_500
OTHER_VARIABLES = frozenset(
    # The client, the kernels; then the tests and the benchmarks.
    ("url", "api_key", "cpu", "cache_dir")
    + ("data", "adult_splits", "chaos_faults", "chaos_rounds", "chaos_seed", "crash_mark")
    + ("full_mark", "fuzz_scale", "reliability", "screenshots")
)
"""Variables with the prefix that other programs read."""
_OF_SERVICE_LINKS = re.compile(r"(.+_)?(service_(host|port)(_.*)?|port_\d+_(tcp|udp|sctp)(_.*)?)")
"""Variables that Kubernetes and Docker set for services `dualstream` and `dualstream-NAME`."""
_ADDRESS_OF_LINK = re.compile(r"(tcp|udp|sctp)://\S+:\d+")
"""Value of NAME_PORT, which they set, too."""

_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/\s?#]+")


def _group(name: str) -> partial[Any]:
    """A field of this group in `--help` and docs/reference/settings.md."""
    return partial(Field, json_schema_extra={"group": name})


_network, _security, _store = _group("Network"), _group("Security"), _group("Store")
_limits, _models, _logs = _group("Limits"), _group("Models"), _group("Logs")


class Settings(BaseSettings):
    """Configuration of a Dualstream server process."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    host: str = _network(
        "127.0.0.1", description="Address to bind; `0.0.0.0` is every one of IPv4, `::` every one."
    )
    port: int = _network(8000, ge=0, le=65535, description="Port to bind; 0 picks a free port.")
    workers: int = _network(
        1, ge=1, le=256, description="Number of worker processes that share the port."
    )
    forwarded_allow_ips: str | None = _network(
        None,
        description="Comma-separated addresses of trusted proxies. Their `X-Forwarded-*` headers"
        " are used.",
    )
    keep_alive_s: int = _network(
        75,
        ge=1,
        description="Idle time in seconds after which a connection is closed. Proxies and clients"
        " need a shorter one.",
    )
    request_timeout_s: float = _network(
        30.0,
        ge=0.001,
        description="Time in seconds that rows may wait to be journalled and learned; then 503 with"
        " `outcome: unknown`.",
    )
    stop_timeout_s: float = _network(
        8.0,
        ge=0.001,
        description="Time in seconds that running requests get to finish when the server stops.",
    )
    drain_s: float = _network(
        5.0,
        ge=0,
        description="Time in seconds that a server serves on after SIGTERM. `/readyz` then answers"
        " 503, and each response closes its connection.",
    )

    allow_anonymous: bool = _security(
        False, description="Serve without API keys on an address that other machines can reach."
    )
    keys_file: Path | None = _security(
        None,
        description="File of API keys, one line of `dualstream new-key` each. Changes are applied"
        " without a restart.",
    )
    keys: str | None = _security(
        None, description="API keys in the format of the file, separated by `;`."
    )
    key_requests_per_s: int | None = _security(
        None,
        ge=1,
        le=999_999_999,
        description="Default rate limit of a key in requests per second, over all workers.",
    )
    key_rows_per_s: int | None = _security(
        None,
        ge=1,
        le=999_999_999,
        description="Default rate limit of a key in rows per second, learned or scored, over all"
        " workers.",
    )
    ssl_certfile: Path | None = _security(
        None, description="TLS certificate with its chain, in PEM format."
    )
    ssl_keyfile: Path | None = _security(
        None,
        description="Private key of the certificate, in PEM format. Unset: the certificate's file"
        " holds the key.",
    )
    cors_origins: str | None = _security(
        None, description="Comma-separated origins whose pages may call the API from a browser."
    )

    store: str = _store(
        "sqlite:///dualstream.db",
        description="URL of the store: `sqlite:///FILE`, `redis://`, `redis+sentinel://` or"
        " `redis+cluster://` (`rediss` for TLS).",
    )
    store_file: Path | None = _store(
        None, description="File that holds the URL of the store, which may have a password."
    )
    durability: str | None = _store(
        None,
        description="Minimum durability: `memory`, `everysec`, `always` or `replicated:N` on Redis,"
        " `normal` or `full` on SQLite. A store with less is not ready.",
    )
    adopt: bool = _store(
        False,
        description="Take over a store that another version wrote. Stop all other workers first.",
    )
    snapshot_every: int = _store(
        10_000, ge=1, description="Number of log positions between two snapshots of a model."
    )
    keep_records: int = _store(
        0,
        ge=0,
        description="Minimum number of latest records that a journal keeps. Trimming spares them.",
    )
    key_ttl_s: int = _store(
        3600, ge=1, description="Time in seconds that an idempotency key is kept."
    )
    remember_s: int = _store(
        86_400,
        ge=1,
        le=90 * 86_400,
        description="Time in seconds that a pending row waits for its label, and that a label "
        "can be revised.",
    )
    audit_days: int = _store(
        400, ge=1, le=MAX_AUDIT_DAYS, description="Days that the audit log keeps a change."
    )

    max_body_bytes: int = _limits(
        16 * 1024 * 1024,
        ge=1,
        description="Maximum size of a request body in bytes, also after decompression. In a"
        " streamed upload the limit applies to each row. 32 times this, but at least 128 MiB, is"
        " the memory for bodies of unanswered requests, per worker.",
    )
    max_upload_bytes: int | None = _limits(
        None,
        ge=1,
        description="Maximum size of a streamed upload in bytes, also after decompression.",
    )
    max_models: int | None = _limits(
        None, ge=1, description="Maximum number of models in the store."
    )
    max_model_bytes: int = _limits(
        1024**3,
        ge=1,
        description="Maximum memory of a model in bytes. A larger model predicts but does not"
        " learn.",
    )

    models_bytes: int = _models(
        1024**3,
        ge=1,
        description="Memory for models in bytes, per worker. Models beyond it are evicted and"
        " reloaded on use.",
    )
    metrics_max_models: int = _models(
        500, ge=1, description="Maximum number of models with their own series on `/metrics`."
    )
    metrics_segments: bool = _models(
        False,
        description="Series of segments on `/metrics`: of each column of `segments` the first 20"
        " values.",
    )

    log_level: Literal["debug", "info", "warning", "error"] = _logs(
        "info", description="Lowest level of the lines that are logged."
    )
    log_format: Literal["console", "json"] = _logs(
        "console", description="Lines for people, or one JSON object a line."
    )
    access_log: Literal["off", "sampled", "all"] = _logs(
        "off",
        description="A line for each request, or for one of 100 and for all that failed in the"
        " server. Slow requests are always logged.",
    )

    @field_validator("host")
    @classmethod
    def _without_brackets(cls, host: str) -> str:
        """`[::1]` is ::1, as URLs write it."""
        return host[1:-1] if host.startswith("[") and host.endswith("]") else host

    @field_validator("durability")
    @classmethod
    def _check_durability(cls, level: str | None) -> str | None:
        return None if level is None else check_level(level)

    @field_validator("cors_origins")
    @classmethod
    def _check_origins(cls, origins: str | None) -> str | None:
        for one in filter(None, map(str.strip, (origins or "").split(","))):
            if not _ORIGIN.fullmatch(one):
                raise ValueError(
                    f"{one!r} is not an origin; write https://host or https://host:port without "
                    "a path, or * for every page"
                )
        return origins

    @model_validator(mode="before")
    @classmethod
    def _read_store_file(cls, values: Any) -> Any:
        """Take the URL of the store from its file, where secrets of a container are mounted."""
        path = values.get("store_file")
        if not path:
            return values
        if "store" in values:
            raise ValueError(f"{PREFIX}STORE and {PREFIX}STORE_FILE are both set; unset one")
        try:
            url = Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as wrong:
            raise ValueError(f"{PREFIX}STORE_FILE cannot be read: {wrong}") from None
        return values | {"store": url}

    def changed(self) -> dict[str, str]:
        """The settings that differ from their defaults, as texts without secrets."""
        return {
            name: shown(name, value)
            for name, value in self
            if value != type(self).model_fields[name].default
        }

    @property
    def asks_for_keys(self) -> bool:
        """Whether API keys are configured. Then every request needs one."""
        return self.keys is not None or self.keys_file is not None


def shown(name: str, value: Any) -> str:
    """A setting's value as text; passwords and keys are replaced by ***."""
    if value is None:
        return "unset"
    if name == "keys":
        return "***"
    return without_password(value) if name == "store" else str(value)


def without_password(url: str) -> str:
    """The store's URL with passwords replaced by ***."""
    hidden = re.sub(r"(://[^/?@]*:)[^/?@]*@", r"\1***@", url)
    return re.sub(r"(password=)[^&]*", r"\1***", hidden)


def check_variables(environment: Mapping[str, str] = os.environ) -> None:  # noqa: TID251
    """Raise UnknownSettings if the environment has variables with the prefix that nothing reads."""
    wrong = []
    for variable in sorted(environment):
        name = variable.removeprefix(PREFIX).lower()
        is_setting = name in Settings.model_fields or name in OTHER_VARIABLES
        if (
            is_setting
            or not variable.startswith(PREFIX)
            or _is_service_link(name, environment[variable])
        ):
            continue
        close = get_close_matches(name, (*Settings.model_fields, *OTHER_VARIABLES), 1)
        hint = (
            f"did you mean {PREFIX}{close[0].upper()}?"
            if close
            else "unset it, or see docs/reference/settings.md"
        )
        wrong.append(f"{variable} is not a setting; {hint}")
    if wrong:
        raise UnknownSettings("\n".join(wrong))


def _is_service_link(name: str, value: str) -> bool:
    is_port = name.endswith("_port") and _ADDRESS_OF_LINK.fullmatch(value) is not None
    return is_port or _OF_SERVICE_LINKS.fullmatch(name) is not None


class UnknownSettings(ValueError):
    """The environment names settings that do not exist; the message has a line for each."""


class UnsafeBinding(ValueError):
    """The server is reachable by other machines without an API key, and refuses to start."""


def check_binding(settings: Settings) -> None:
    """Raise UnsafeBinding if other machines can reach a server without API keys."""
    if settings.asks_for_keys or settings.allow_anonymous or _is_loopback(settings.host):
        return
    raise UnsafeBinding(
        f"refusing to bind {settings.host} without API keys: "
        "set DUALSTREAM_KEYS_FILE (`dualstream new-key` makes a key), bind 127.0.0.1, "
        "or set DUALSTREAM_ALLOW_ANONYMOUS=1 in a private network"
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
