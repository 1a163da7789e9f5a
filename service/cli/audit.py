"""Command `audit`: the audit log of models."""

from typing import Annotated

import msgspec
import typer
from rich.table import Table

from dualstream.service.cli.common import (
    JSON,
    URL,
    ApiKey,
    Patience,
    Url,
    app,
    connected,
    console,
    known_models,
    print_json,
)

PATIENCE_S = 5.0


@app.command("audit")
def list_changes(
    model: Annotated[
        str | None, typer.Argument(help="Only changes of this model.", autocompletion=known_models)
    ] = None,
    after: Annotated[
        str | None, typer.Option(help="Only changes after this `place` in the log.")
    ] = None,
    url: Url = URL,
    api_key: ApiKey = None,
    patience: Patience = PATIENCE_S,
    as_json: JSON = False,
) -> None:
    """Show who changed models, oldest change first, including deleted models.

    Example:

        dualstream audit clicks
    """
    with connected(url, api_key, patience, as_json) as client:
        found = client.audit(model, after=after)
    if as_json:
        print_json(found)
        return
    table = Table("time", "model", "seq", "action", "by", "detail", box=None)
    for change in found:
        author = change.by if change.key is None else f"{change.key} {change.key_id}"
        detail = msgspec.json.encode(change.detail).decode() if change.detail else ""
        time = f"{change.time:%Y-%m-%d %H:%M:%S}"
        table.add_row(time, change.model, f"{change.seq:,}", change.action, author, detail)
    console.print(table)
