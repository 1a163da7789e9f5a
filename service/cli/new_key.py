"""The command that makes API keys: new-key."""

from typing import Annotated

import typer

from dualstream.service.cli.common import JSON, app, fail, print_json, say


@app.command("new-key")
def make_key(
    name: Annotated[str, typer.Argument(help="Who it is for, as logs and listings call it.")],
    scope: Annotated[
        str, typer.Option(help="predict, learn or admin; each may do what those before it may.")
    ],
    models: Annotated[
        str | None,
        typer.Option(help="Patterns of the models it may see, with commas; all if unset."),
    ] = None,
    requests_per_s: Annotated[
        int | None, typer.Option(min=1, max=999_999_999, help="Most requests a second.")
    ] = None,
    rows_per_s: Annotated[
        int | None, typer.Option(min=1, max=999_999_999, help="Most rows a second.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Make an API key: it is shown once, and kept nowhere.

    The line with its digest goes into the file of keys (KEYS_FILE) or into KEYS.

    Example:

        dualstream new-key ads-producer --scope learn --models 'ads-*' --rows-per-s 5000
    """
    from dualstream.service.api.api_keys import BadKeys, new_key

    try:
        patterns = models.split(",") if models else ()
        secret, key = new_key(name, scope, patterns, requests_per_s, rows_per_s)
    except BadKeys as wrong:
        fail(str(wrong))
    if as_json:
        print_json({"key": secret, "line": key.line()})
        return
    say(f"key   {secret}")
    say(f"line  {key.line()}")
