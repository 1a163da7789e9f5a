"""One frozen settings object, read once from the environment and passed in everywhere.

Every field is also a flag of `dualstream serve`: DUALSTREAM_MAX_BODY_BYTES = --max-body-bytes.
"""

import ipaddress
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.journal.durability import check_level

Durability = Annotated[str, AfterValidator(check_level)]
MOST_AUDIT_DAYS = 36_500


class Settings(BaseSettings):
    """What a Dualstream process is told from outside; units are in the names."""

    model_config = SettingsConfigDict(env_prefix="DUALSTREAM_", frozen=True, extra="ignore")

    host: str = Field("127.0.0.1", description="Address to bind.")
    port: int = Field(8000, ge=0, le=65535, description="Port to bind; 0 takes a free one.")
    allow_anonymous: bool = Field(
        False, description="Serve without API keys on an address that others can reach."
    )
    keys_file: Path | None = Field(
        None,
        description="File of API keys, as lines of `dualstream new-key`; followed as it changes.",
    )
    keys: str | None = Field(
        None, description="API keys, as such lines with ; between them, beside those of the file."
    )
    key_requests_per_s: int | None = Field(
        None,
        ge=1,
        le=999_999_999,
        description="Most requests a second of a key whose line says nothing else, over all"
        " workers; unset sets no bound.",
    )
    key_rows_per_s: int | None = Field(
        None,
        ge=1,
        le=999_999_999,
        description="Most rows a second, learned or scored, of such a key; unset sets no bound.",
    )
    ssl_certfile: Path | None = Field(
        None, description="Serve TLS with this certificate and its chain, in PEM."
    )
    ssl_keyfile: Path | None = Field(
        None, description="The certificate's private key, in PEM; unset if it is in the same file."
    )
    forwarded_allow_ips: str | None = Field(
        None,
        description="Addresses of proxies whose X-Forwarded-* headers are believed, with commas;"
        " unset believes none.",
    )
    cors_origins: str | None = Field(
        None,
        description="Origins whose pages may call the API, with commas; unset: none.",
    )
    workers: int = Field(1, ge=1, le=256, description="Processes that serve the one port.")
    store: str = Field(
        "sqlite:///dualstream.db",
        description="Where journals live: sqlite:///FILE, redis://, redis+sentinel:// or"
        " redis+cluster://...",
    )
    adopt: bool = Field(
        False,
        description="Take over a store that another version wrote; stop all other workers.",
    )
    durability: Durability | None = Field(
        None, description="The least durability to accept of the store; unset asks for nothing."
    )
    max_body_bytes: int = Field(
        16 * 1024 * 1024,
        ge=1,
        description="Longest request body, also once it is inflated; of one that is learned as it"
        " arrives, the longest row.",
    )
    max_bodies_bytes: int = Field(
        512 * 1024**2,
        ge=1,
        description="Memory for the bodies of requests that are not answered, per worker.",
    )
    max_upload_bytes: int | None = Field(
        None,
        ge=1,
        description="Longest body that is learned as it arrives, also once it is inflated; unset"
        " sets no bound.",
    )
    max_rows: int = Field(
        1_000_000, ge=1, description="Most rows of a request, but for one learned as it arrives."
    )
    max_upload_rows: int | None = Field(
        None, ge=1, description="Most rows of one that is; unset sets no bound."
    )
    max_nonzeros: int = Field(
        100_000, ge=1, description="Most features of a row that are not 0; a longer row is refused."
    )
    max_name_length: int = Field(
        1024,
        ge=1,
        le=1024,
        description="Most characters of a feature's name, and of a text that is a value.",
    )
    max_models: int | None = Field(
        None, ge=1, description="Most models of the store; unset sets no bound."
    )
    max_model_bytes: int = Field(
        1024**3, ge=1, description="Memory of a model beyond which it learns no more."
    )
    max_quarantine: int = Field(
        100_000,
        ge=1,
        description="Most records in quarantine while a model's learning pauses; then it is"
        " refused.",
    )
    max_quarantine_bytes: int = Field(
        256 * 1024**2,
        ge=1,
        description="Most bytes of rows in quarantine, at 16 a feature and 32 a row; then learning"
        " is refused.",
    )
    max_in_flight: int = Field(
        512, ge=1, description="Requests that wait, per worker, beyond which learning is refused."
    )
    shed_after_s: float = Field(
        0.05,
        gt=0,
        description="The longest wait, of 288 requests or more, beyond which learning is refused.",
    )
    max_connections: int = Field(
        10_000,
        ge=1,
        description="Most open connections, per worker; for one more the idlest are closed.",
    )
    max_head_bytes: int = Field(
        64 * 1024, ge=1024, description="Longest path and headers of a request, together."
    )
    head_timeout_s: float = Field(
        10.0, gt=0, description="How long a request's head may take, and a connection without any."
    )
    body_timeout_s: float = Field(
        30.0,
        gt=0,
        description="How long each 1024 bytes of a body may take, or a client to read as many.",
    )
    keep_alive_s: int = Field(
        5, ge=1, description="How long a connection stays open after an answer."
    )
    request_timeout_s: float = Field(
        30.0, gt=0, description="How long rows wait to be journalled and learned."
    )
    append_timeout_s: float = Field(
        5.0, gt=0, description="How long an append of unknown outcome is repeated."
    )
    stop_timeout_s: float = Field(
        8.0,
        gt=0,
        description="How long requests under way may go on once the server is asked to stop.",
    )
    max_listeners: int = Field(
        100, ge=0, description="Most streams of events that are open, per worker."
    )
    snapshot_every: int = Field(10_000, ge=1, description="Write a snapshot each so many seq.")
    models_bytes: int = Field(
        1024**3, ge=1, description="Memory for models, per worker; those used least leave it."
    )
    models_held: int | None = Field(
        None, ge=1, description="Most models in memory, per worker; unset leaves it to their bytes."
    )
    keep_records: int = Field(
        0, ge=0, description="Keep at least so many of the last records of a journal."
    )
    max_versions: int = Field(100, ge=1, description="Most versions of a model.")
    versions_held: int = Field(
        8, ge=1, description="Most versions in memory to predict by, per worker."
    )
    versions_bytes: int = Field(
        256 * 1024**2, ge=1, description="Memory for versions to predict by, per worker."
    )
    key_ttl_s: int = Field(3600, ge=1, description="How long idempotency keys are remembered.")
    max_keys: int = Field(1_000_000, ge=1, description="Most idempotency keys kept per model.")
    redis_input: bool = Field(
        False, description="Learn what producers XADD to ds:{ID}:in; of a Redis store only."
    )
    max_dead: int = Field(
        10_000, ge=1, description="Dead messages of an input kept per model, about."
    )
    remember_s: int = Field(
        86_400, ge=1, description="How long remembered rows wait for their labels."
    )
    max_remembered: int = Field(
        100_000, ge=1, description="Most rows that wait for their labels, per model."
    )
    remembered_bytes: int = Field(
        64 * 1024 * 1024, ge=1, description="What they may take in the store, per model."
    )
    audit_days: int = Field(
        400,
        ge=1,
        le=MOST_AUDIT_DAYS,
        description="How long changes to models are told of by the audit log.",
    )
    metrics_max_models: int = Field(
        500, ge=1, description="Most models with series of their own on /metrics."
    )
    kept_answers: int = Field(
        1000, ge=0, description="Requests with a key whose first answers are kept, per model."
    )

    @property
    def asks_for_keys(self) -> bool:
        """Whether API keys are configured; then nobody is served without one."""
        return self.keys is not None or self.keys_file is not None


class UnsafeBinding(ValueError):
    """Refused at start: the server would be open to others without any key."""


def check_binding(settings: Settings) -> None:
    """Raise UnsafeBinding when others could reach a server that asks nobody for a key."""
    if settings.asks_for_keys or settings.allow_anonymous or _is_loopback(settings.host):
        return
    raise UnsafeBinding(
        f"refusing to bind {settings.host} without API keys: "
        "set DUALSTREAM_KEYS_FILE (`dualstream new-key` makes a key), bind 127.0.0.1, "
        "or set DUALSTREAM_ALLOW_ANONYMOUS=1 if the network is yours alone"
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
