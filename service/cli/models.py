"""Commands of models: models, create, delete, certificate, columns, export, audit."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from dualstream.client import BadInput, Client, Refused
from dualstream.service.cli.common import JSON, REFUSED, Table, fail, report
from dualstream.service.cli.connection import Model, command, complete_model, naming
from dualstream.wire.plural import plural
from dualstream.wire.responses import Column, Model as ModelAnswer

SUFFIXES = {
    "json": "json",
    "onnx": "onnx",
    "sklearn-coef": "coef.json",
    "vw": "vw",
    "xgboost": "xgboost.json",
}
"""Format of `export` -> ending of its file."""


@command("models")
def list_models(client: Client, as_json: JSON = False) -> None:
    """List the server's models.

    Example:

        dualstream models --json
    """
    models = client.models()
    table = Table("model", "algorithm", "seq", "samples", "created", box=None)
    for model in models:
        samples = "" if model.samples is None else f"{model.samples:,}"
        created = f"{model.created:%Y-%m-%d %H:%M}"
        table.add_row(model.id, _algorithm(model), f"{model.seq:,}", samples, created)
    report(as_json, models, table)


@command()
def create(
    client: Client,
    model: Model,
    spec: Annotated[
        str | None, typer.Option(help="JSON file, or - for standard input; default: {}.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="PATH=VALUE: set a field, e.g. rho=0.01 or window.beta=0.999."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Delete an existing model that has another spec.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Create a model from a spec. An existing model with the same spec is kept.

    Without --spec and --set the model is the default portfolio.

    Examples:

        dualstream create clicks
        dualstream create spam --set algorithm=dual_ascent --set features.kind=hashed
    """
    try:
        created = client.create(model, read_spec(spec, changes or []), replace=replace)
    except Refused as refused:
        if refused.kind == "conflict" and not as_json:  # the server names its own headers
            text = f"model {model!r} exists with another spec; --replace deletes it first"
            fail(text, REFUSED)
        raise
    report(as_json, created, f"{created.id}: {_algorithm(created)}, seq {created.seq:,}")
    for warning in () if as_json else created.warnings:
        typer.echo(f"warning: {warning}", err=True)


@command()
def delete(
    client: Client,
    model: Model,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: JSON = False,
) -> None:
    """Delete a model, its journal and its versions.

    Example:

        dualstream delete clicks --yes
    """
    if not yes:
        typer.confirm(f"Delete {model} and all that it has learned?", abort=True)
    client.delete(model)
    report(as_json, {"deleted": model}, f"{model} is deleted")


@command()
def certificate(
    client: Client,
    model: Model,
    member: Annotated[str | None, typer.Option(help="Certificate of this member.")] = None,
    as_json: JSON = False,
) -> None:
    """Show the duality gap: how far the weights are from the optimum on their window.

    Example:

        dualstream certificate clicks --member dual-30
    """
    answer = client.certificate(model, member=member)
    lines = []
    for name in ("primal", "dual", "gap", "relative_gap"):
        value = getattr(answer, name)
        shown = "too large" if value is None else f"{value:.6g}"
        lines.append(f"{name.replace('_', ' '):<13} {shown}")
    kind = "an estimate" if answer.estimate else "exact"
    lines.append(f"{kind}, on {plural(answer.rows, 'retained row')}, seq {answer.seq:,}")
    report(as_json, answer, *lines)


@command("columns")
def show_columns(
    client: Client,
    model: Model,
    sort: Annotated[str, typer.Option(help="psi: largest drift first; or name.")] = "psi",
    as_json: JSON = False,
) -> None:
    """Show what the columns of a model's stream hold, and which have moved from their past.

    Example:

        dualstream columns clicks
    """
    if sort not in ("psi", "name"):
        raise typer.BadParameter(f"must be psi or name, got {sort!r}", param_hint="--sort")
    answer = client.columns(model, sort=sort)
    table = Table("column", "kind", box=None)
    for name in ("count", "missing", "mean, sd or frequent values", "last", "refused", "psi"):
        table.add_column(name, justify="left" if name.startswith("mean") else "right")
    table.add_column("drift")
    for one in answer.columns:
        table.add_row(*column_cells(one))
    more = ["There are more columns: only the first 256 count."] if answer.has_more else []
    report(as_json, answer, table, *more)


def column_cells(one: Column) -> list[str]:
    """A column as texts of a table."""
    if one.missing is None:
        missing = "?"
    else:
        missing = f"{one.missing / max(1, one.count + one.missing):.1%}"
        missing += " or 0" if one.missing_includes_zero and one.missing else ""
    if one.mean is not None and one.sd is not None:
        what = f"{one.mean:.4g} ± {one.sd:.4g}" + (" words" if one.kind == "text" else "")
    else:
        what = ", ".join(f"{value.value} ({value.count:,})" for value in one.top[:3])
    if one.others:
        what += f", {plural(one.others, 'text')}"
    last = f"{one.last:.4g}" if isinstance(one.last, float | int) else one.last or ""
    psi = "" if one.psi is None else f"{one.psi:.3f}"
    counts = f"{one.count:,}", missing, what, last, f"{one.refused:,}", psi
    return [one.name, one.kind, *counts, one.drift or ""]


@command()
def export(
    client: Client,
    model: Model,
    format: Annotated[str, typer.Option(help=f"{', '.join(SUFFIXES)}.")] = "json",
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="File, or - for standard output; default: MODEL.SUFFIX."
        ),
    ] = None,
    member: Annotated[str | None, typer.Option(help="Export only this member.")] = None,
    as_json: JSON = False,
) -> None:
    """Export a model to a file, with which another program scores rows as the server does.

    Without -o the file is MODEL.json, .onnx, .coef.json, .vw or .xgboost.json.

    Examples:

        dualstream export clicks --format onnx
        dualstream export clicks --member dual-30 --format json -o - > clicks.json
    """
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
    with naming(file):
        file.write_bytes(written)
    about = {"model": model, "format": format, "file": str(file), "bytes": len(written)}
    report(as_json, about, f"{file}: {model} as {format}, {len(written):,} bytes")


@command("audit")
def list_changes(
    client: Client,
    model: Annotated[
        str | None,
        typer.Argument(help="Only changes of this model.", autocompletion=complete_model),
    ] = None,
    after: Annotated[
        str | None, typer.Option(help="Only changes after this `place` in the log.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Show who changed models, oldest change first, including deleted models.

    Example:

        dualstream audit clicks
    """
    changes = client.audit(model, after=after)
    table = Table("time", "model", "seq", "action", "by", "detail", box=None)
    for change in changes:
        author = change.by if change.key is None else f"{change.key} {change.key_id}"
        detail = msgspec.json.encode(change.detail).decode() if change.detail else ""
        if change.outcome == "refused":
            detail = f"refused: {change.reason} {detail}"
        time = f"{change.time:%Y-%m-%d %H:%M:%S}"
        table.add_row(time, change.model, f"{change.seq:,}", change.action, author, detail)
    report(as_json, changes, table)


def read_spec(name: str | None, changes: Sequence[str] = ()) -> dict[str, Any]:
    """Specification in a file (-: standard input), with changes PATH=VALUE. Raises BadInput."""
    text = "{}"
    try:
        if name is not None:
            text = sys.stdin.read() if name == "-" else Path(name).read_text()
        spec = json.loads(text)
    except OSError as wrong:
        raise BadInput(f"{name}: {wrong.strerror}") from None
    except ValueError as wrong:
        raise BadInput(f"{name}: invalid JSON: {wrong}") from None
    if not isinstance(spec, dict):
        raise BadInput(f"{name}: the spec must be a JSON object")
    for change in changes:
        _set(spec, change)
    return spec


def _set(spec: dict[str, Any], change: str) -> None:
    path, equals, text = change.partition("=")
    *folders, field = path.split(".")
    if not equals or not all((*folders, field)):
        raise BadInput(f"--set needs PATH=VALUE, e.g. window.beta=0.999, got {change!r}")
    for folder in folders:
        inner = spec.setdefault(folder, {})
        if isinstance(inner, str):  # short form of {"kind": ...}
            inner = spec[folder] = {"kind": inner}
        if not isinstance(inner, dict):
            raise BadInput(f"--set {change}: {folder} is not an object")
        spec = inner
    try:
        spec[field] = json.loads(text)
    except ValueError:
        spec[field] = text


def _algorithm(model: ModelAnswer) -> str:
    algorithm = str(model.spec.get("algorithm", ""))
    members = model.spec.get("members")
    return f"{algorithm} {members}" if isinstance(members, str) else algorithm
