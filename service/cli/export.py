"""Command `export`: a model as a file for another program."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from dualstream.client import BadInput
from dualstream.service.cli.common import (
    JSON,
    URL,
    ApiKey,
    Model,
    Patience,
    Url,
    app,
    connected,
    print_json,
    say,
)

PATIENCE_S = 5.0
SUFFIXES = {"json": "json", "onnx": "onnx", "sklearn-coef": "coef.json", "vw": "vw"}


@app.command()
def export(
    model: Model,
    format: Annotated[str, typer.Option(help=f"{', '.join(SUFFIXES)}.")] = "json",
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="File, or - for standard output; default: MODEL.SUFFIX."
        ),
    ] = None,
    member: Annotated[str | None, typer.Option(help="Export only this member.")] = None,
    url: Url = URL,
    api_key: ApiKey = None,
    patience: Patience = PATIENCE_S,
    as_json: JSON = False,
) -> None:
    """Export a model to a file, with which another program scores rows as the server does.

    Examples:

        dualstream export clicks --format onnx
        dualstream export clicks --member dual-30 --format json -o - > clicks.json
    """
    with connected(url, api_key, patience, as_json) as client:
        if format not in SUFFIXES:
            raise BadInput(f"--format must be one of {', '.join(SUFFIXES)}, got {format!r}")
        if as_json and output == "-":
            raise BadInput("--json and --output - both write to standard output; give another file")
        written = client.export(model, format, member=member)
        if output == "-":
            sys.stdout.buffer.write(written)
            return
        stem = model if member is None else f"{model}.{member}"
        file = Path(output or f"{stem}.{SUFFIXES[format]}")
        try:
            file.write_bytes(written)
        except OSError as wrong:
            raise BadInput(f"{file}: {wrong.strerror}") from None
    if as_json:
        print_json({"model": model, "format": format, "file": str(file), "bytes": len(written)})
    else:
        say(f"{file}: {model} as {format}, {len(written):,} bytes")
