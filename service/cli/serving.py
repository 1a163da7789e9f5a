"""Commands that run a server: serve, demo."""

import logging
import math
from pathlib import Path
from typing import Annotated

import typer

from service.cli.common import (
    JSON,
    app,
    console,
    errors,
    fail,
    flag,
    help_of,
    print_json,
    read_settings,
)
from service.settings import UnsafeBinding


@app.command()
def serve(
    host: Annotated[str | None, flag("host", help_of("host"))] = None,
    port: Annotated[int | None, flag("port", help_of("port"))] = None,
    workers: Annotated[int | None, flag("workers", help_of("workers"))] = None,
    store: Annotated[str | None, flag("store", help_of("store"))] = None,
    adopt: Annotated[bool | None, flag("adopt", help_of("adopt"))] = None,
    durability: Annotated[str | None, flag("durability", help_of("durability"))] = None,
    allow_anonymous: Annotated[
        bool | None, flag("allow-anonymous", help_of("allow_anonymous"))
    ] = None,
    keys_file: Annotated[Path | None, flag("keys-file", help_of("keys_file"))] = None,
    keys: Annotated[str | None, flag("keys", help_of("keys"))] = None,
    key_requests_per_s: Annotated[
        int | None, flag("key-requests-per-s", help_of("key_requests_per_s"))
    ] = None,
    key_rows_per_s: Annotated[int | None, flag("key-rows-per-s", help_of("key_rows_per_s"))] = None,
    ssl_certfile: Annotated[Path | None, flag("ssl-certfile", help_of("ssl_certfile"))] = None,
    ssl_keyfile: Annotated[Path | None, flag("ssl-keyfile", help_of("ssl_keyfile"))] = None,
    forwarded_allow_ips: Annotated[
        str | None, flag("forwarded-allow-ips", help_of("forwarded_allow_ips"))
    ] = None,
    cors_origins: Annotated[str | None, flag("cors-origins", help_of("cors_origins"))] = None,
    max_body_bytes: Annotated[int | None, flag("max-body-bytes", help_of("max_body_bytes"))] = None,
    max_bodies_bytes: Annotated[
        int | None, flag("max-bodies-bytes", help_of("max_bodies_bytes"))
    ] = None,
    max_upload_bytes: Annotated[
        int | None, flag("max-upload-bytes", help_of("max_upload_bytes"))
    ] = None,
    max_rows: Annotated[int | None, flag("max-rows", help_of("max_rows"))] = None,
    max_upload_rows: Annotated[
        int | None, flag("max-upload-rows", help_of("max_upload_rows"))
    ] = None,
    max_nonzeros: Annotated[int | None, flag("max-nonzeros", help_of("max_nonzeros"))] = None,
    max_name_length: Annotated[
        int | None, flag("max-name-length", help_of("max_name_length"))
    ] = None,
    max_models: Annotated[int | None, flag("max-models", help_of("max_models"))] = None,
    max_model_bytes: Annotated[
        int | None, flag("max-model-bytes", help_of("max_model_bytes"))
    ] = None,
    max_quarantine: Annotated[int | None, flag("max-quarantine", help_of("max_quarantine"))] = None,
    max_quarantine_bytes: Annotated[
        int | None, flag("max-quarantine-bytes", help_of("max_quarantine_bytes"))
    ] = None,
    max_in_flight: Annotated[int | None, flag("max-in-flight", help_of("max_in_flight"))] = None,
    shed_after_s: Annotated[float | None, flag("shed-after-s", help_of("shed_after_s"))] = None,
    max_connections: Annotated[
        int | None, flag("max-connections", help_of("max_connections"))
    ] = None,
    max_head_bytes: Annotated[int | None, flag("max-head-bytes", help_of("max_head_bytes"))] = None,
    head_timeout_s: Annotated[
        float | None, flag("head-timeout-s", help_of("head_timeout_s"))
    ] = None,
    body_timeout_s: Annotated[
        float | None, flag("body-timeout-s", help_of("body_timeout_s"))
    ] = None,
    keep_alive_s: Annotated[int | None, flag("keep-alive-s", help_of("keep_alive_s"))] = None,
    request_timeout_s: Annotated[
        float | None, flag("request-timeout-s", help_of("request_timeout_s"))
    ] = None,
    max_listeners: Annotated[int | None, flag("max-listeners", help_of("max_listeners"))] = None,
    stop_timeout_s: Annotated[
        float | None, flag("stop-timeout-s", help_of("stop_timeout_s"))
    ] = None,
    append_timeout_s: Annotated[
        float | None, flag("append-timeout-s", help_of("append_timeout_s"))
    ] = None,
    snapshot_every: Annotated[int | None, flag("snapshot-every", help_of("snapshot_every"))] = None,
    models_bytes: Annotated[int | None, flag("models-bytes", help_of("models_bytes"))] = None,
    models_held: Annotated[int | None, flag("models-held", help_of("models_held"))] = None,
    keep_records: Annotated[int | None, flag("keep-records", help_of("keep_records"))] = None,
    max_versions: Annotated[int | None, flag("max-versions", help_of("max_versions"))] = None,
    versions_held: Annotated[int | None, flag("versions-held", help_of("versions_held"))] = None,
    versions_bytes: Annotated[int | None, flag("versions-bytes", help_of("versions_bytes"))] = None,
    key_ttl_s: Annotated[int | None, flag("key-ttl-s", help_of("key_ttl_s"))] = None,
    max_keys: Annotated[int | None, flag("max-keys", help_of("max_keys"))] = None,
    redis_input: Annotated[bool | None, flag("redis-input", help_of("redis_input"))] = None,
    max_dead: Annotated[int | None, flag("max-dead", help_of("max_dead"))] = None,
    remember_s: Annotated[int | None, flag("remember-s", help_of("remember_s"))] = None,
    max_remembered: Annotated[int | None, flag("max-remembered", help_of("max_remembered"))] = None,
    remembered_bytes: Annotated[
        int | None, flag("remembered-bytes", help_of("remembered_bytes"))
    ] = None,
    audit_days: Annotated[int | None, flag("audit-days", help_of("audit_days"))] = None,
    metrics_max_models: Annotated[
        int | None, flag("metrics-max-models", help_of("metrics_max_models"))
    ] = None,
    kept_answers: Annotated[int | None, flag("kept-answers", help_of("kept_answers"))] = None,
) -> None:
    """Run the server. Flags win over the environment.

    Example:

        dualstream serve --store redis://localhost:6379/0 --workers 2
    """
    given = {name: value for name, value in locals().items() if value is not None}
    settings = read_settings(given)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    from service import forks, kernels

    if settings.workers > 1:
        forks.begin()
    with kernels.telling(lambda line: errors.print(line, style="dim", highlight=False)):
        from service.server import serve as run_alone
        from service.workers import serve_by_workers

    run = run_alone if settings.workers == 1 else serve_by_workers
    try:
        run(settings, lambda line: console.print(line, highlight=False, soft_wrap=True))
    except (UnsafeBinding, ValueError, OSError) as refused:
        fail(str(refused))


@app.command()
def demo(
    stay: Annotated[
        bool,
        typer.Option(
            "--stay",
            help="To look at its page: rows come more slowly, and it is there until Ctrl-C.",
        ),
    ] = False,
    as_json: JSON = False,
) -> None:
    """Stream the Adult data through a server of its own and compare with two baselines.

    Example:

        dualstream demo --stay
    """
    from service.demo.run import WATCHED_ROWS_PER_S, run_demo

    said, tell = (errors, print_json) if as_json else (console, None)
    raise typer.Exit(run_demo(said, tell, stay, WATCHED_ROWS_PER_S if stay else math.inf))
