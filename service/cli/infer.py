"""Command that proposes the `columns` of a file: infer."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from dualstream.client import FORMATS, BadInput, Refused, RowFile
from dualstream.client.resumable_files import STANDARD_INPUT
from dualstream.service.cli import connection
from dualstream.service.cli.commands import app
from dualstream.service.cli.common import JSON, REFUSED, Table, errors, fail, note, print_json
from dualstream.service.cli.rows import Format, row_files
from dualstream.wire.printable import printable_json

ROWS = 10_000


@app.command()
def infer(
    file: Annotated[
        str, typer.Argument(help="CSV, NDJSON, JSON, Arrow or Parquet; - is standard input.")
    ],
    label: Annotated[
        str | None, typer.Option(help="Column of the label; default: by names and values.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="binary, multiclass or regression; default: by the label.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="With the groups of `history` that are proposed.")
    ] = False,
    rows: Annotated[int, typer.Option(min=1, help="Maximum number of rows to read.")] = ROWS,
    form: Format = None,
    create: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Create this model on the server.",
            autocompletion=connection.complete_model,
            callback=connection.checked_id,
        ),
    ] = None,
    url: connection.Url = connection.URL,
    api_key: connection.ApiKey = None,
    patience: connection.Patience = 5.0,
    as_json: JSON = False,
) -> None:
    """Propose the specification of a file: label, task and the type of each column.

    Reads the first rows of the file. Prints the specification to standard output and the reasons
    to standard error, also groups of `history`, which the specification has with --history.

    Examples:

        dualstream infer monday.csv --label clicked > spec.json
        dualstream infer monday.csv --create clicks
    """
    from dualstream.service.server import compile_kernels as kernels

    with kernels.compiled_by_processes(errors):
        from dualstream.service.features.infer.labels import TASKS
        from dualstream.service.features.infer.propose import propose
        from dualstream.service.features.infer.sample import read_sample

    with connection.ending(as_json):
        if task is not None and task not in TASKS:
            raise BadInput(f"--task must be one of {', '.join(TASKS)}, got {task!r}")
        row_file = _file(file, form)
        sample = read_sample(row_file, rows)
        proposal = propose(sample, label, task, history)
    if as_json:
        print_json(proposal.response(len(sample.rows)))
    else:
        spec = msgspec.json.format(msgspec.json.encode(proposal.spec), indent=2).decode()
        typer.echo(printable_json(spec))
        errors.print(_table(proposal))
        _show_groups(proposal)
        for warning in proposal.warnings:
            note(f"warning: {warning}")
    if create is not None:
        with connection.connected(url, api_key, patience, as_json) as client:
            try:
                made = client.create(create, proposal.spec)
            except Refused as refused:
                if refused.kind == "conflict" and not as_json:  # the server names its own headers
                    text = f"model {create!r} exists with another spec; use another id, or delete"
                    fail(f"{text} it first: dualstream delete {create}", REFUSED)
                raise
        learn = _learn(create, row_file)
        note(f"{made.id} is created, seq {made.seq:,}; learn the file with:\n{learn}")


def _file(name: str, form: str | None) -> RowFile:
    """The file. Raises BadInput."""
    files = row_files([name], form, None)
    if len(files) != 1:
        raise BadInput(f"infer reads one file; {name} matches {len(files)}")
    return files[0]


def _table(proposal: Any) -> Table:
    table = Table("column", "type", "missing", "reason", box=None)
    for name, choice in proposal.choices.items():
        kind = choice.kind if isinstance(choice.kind, str) else choice.kind["kind"]
        gone, rows = proposal.missing(name), proposal.seen[name].rows
        missing = f"{gone / rows:.0%}" if gone else ""
        table.add_row(name, kind, missing, choice.reason)
    return table


def _show_groups(proposal: Any) -> None:
    if proposal.groups and not proposal.has_history:
        note("history is proposed, and not taken; take it with --history:")
    for one in proposal.groups:
        note(f"{msgspec.json.encode(one.group).decode()}\n  {one.reason}")


def _learn(model: str, file: RowFile) -> str:
    """The command that learns the file."""
    name = shlex.quote(file.name)
    form = ""
    if file.name == STANDARD_INPUT or not Path(file.name).suffix or ";" in file.kind:
        form = next(f" --format {form}" for form, kind in FORMATS.items() if kind == file.kind)
    return f"  dualstream learn {model} {name}{form}"
