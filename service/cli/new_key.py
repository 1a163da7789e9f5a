"""Command `new-key`: create an API key."""

from typing import Annotated

import typer

from dualstream.service.cli.commands import app
from dualstream.service.cli.common import JSON, fail, report
from dualstream.service.http.api_keys import BadKeys, new_key


@app.command("new-key")
def make_key(
    name: Annotated[str, typer.Argument(help="Name of the key, for logs and listings.")],
    scope: Annotated[
        str, typer.Option(help="predict, learn or admin; each includes the ones before it.")
    ],
    models: Annotated[
        str | None, typer.Option(help="Comma-separated patterns of model ids; default: all.")
    ] = None,
    requests_per_s: Annotated[
        int | None, typer.Option(min=1, max=999_999_999, help="Rate limit in requests per second.")
    ] = None,
    rows_per_s: Annotated[
        int | None, typer.Option(min=1, max=999_999_999, help="Rate limit in rows per second.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Create an API key. It is shown once and stored nowhere.

    Put the line with its digest into the key file (KEYS_FILE) or into KEYS.

    Example:

        dualstream new-key ads-producer --scope learn --models 'ads-*' --rows-per-s 5000
    """
    try:
        patterns = models.split(",") if models else ()
        secret, key = new_key(name, scope, patterns, requests_per_s, rows_per_s)
    except BadKeys as wrong:
        fail(str(wrong))
    document = {"key": secret, "line": key.line()}
    report(as_json, document, f"key   {secret}", f"line  {key.line()}")
