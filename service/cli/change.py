"""Commands that change a model: rollback, sources, labels, refit, resume."""

import json
import time
from typing import Annotated, Any

import typer

from dualstream.client import BadInput, Client
from dualstream.service.cli.common import JSON, REFUSED, Table, number_of, report, say, say_error
from dualstream.service.cli.connection import Model, command
from dualstream.wire.changes import Refit
from dualstream.wire.plural import plural

ASK_EVERY_S = 0.5


@command()
def rollback(
    client: Client,
    model: Model,
    version: Annotated[str | None, typer.Option(help="Name of a version.")] = None,
    seq: Annotated[int | None, typer.Option(min=0, help="Log position of the state.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    as_json: JSON = False,
) -> None:
    """Restore an earlier state of a model. The journal keeps what was learned since.

    Asks first, unless --yes is given.

    Examples:

        dualstream rollback clicks --version before-sale
        dualstream rollback clicks --seq 120000 --yes
    """
    if (version is None) == (seq is None):
        raise typer.BadParameter("give either --version or --seq")
    target = f"version {version}" if seq is None else f"seq {seq:,}"
    if not yes:
        typer.confirm(f"Restore {model} as of {target}?", abort=True)
    done = client.roll_back(model, version=version, seq=seq)
    report(as_json, done, f"{model}: serves the state of {target} since seq {done.seq:,}")


@command()
def sources(
    client: Client,
    model: Model,
    set_: Annotated[
        str | None,
        typer.Option(
            "--set", metavar="NAME=OFFSET", help="Let the next batch of a source begin there."
        ),
    ] = None,
    forget: Annotated[
        str | None, typer.Option(metavar="NAME", help="Delete its cursor: it begins again.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """List the sources of a model: the next offset of each, its lag and counts of rows.

    An OFFSET of digits is a number, any other one a text.

    Examples:

        dualstream sources clicks
        dualstream sources clicks --set kafka/clicks/0=1200
        dualstream sources clicks --forget redis/clicks
    """
    if set_ is not None:
        name, equals, offset = set_.partition("=")
        if not (name and equals and offset):
            raise BadInput(f"--set must be NAME=OFFSET, got {set_!r}")
        is_number = offset.isascii() and offset.isdigit()
        client.set_source(model, name, int(offset) if is_number else offset)
    if forget is not None:
        client.forget_source(model, forget)
    cursors = client.sources(model)
    table = Table("source", "next", "lag", "rows", "refused", "updated", box=None)
    for one in cursors:
        lag = "" if one.lag is None else f"{one.lag:,}"
        counts = (lag, f"{one.rows:,}", f"{one.refused:,}")
        table.add_row(one.name, str(one.next), *counts, f"{one.updated_at:%Y-%m-%d %H:%M:%S}")
    report(as_json, cursors, table)


@command()
def labels(
    client: Client,
    model: Model,
    pairs: Annotated[list[str], typer.Argument(help="ID=LABEL of remembered rows.")],
    revise: Annotated[
        bool, typer.Option("--revise", help="Keep the rows, and let labels replace earlier ones.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Learn labels of rows that were predicted with `remember`, by the ids of the rows.

    Example:

        dualstream labels clicks a7=1 a8=0
    """
    learned = client.learn_labels(model, dict(map(_label_of, pairs)), revise=revise)
    line = f"{model}: {plural(learned.count, 'label')} accepted"
    report(as_json, learned, f"{line}, {plural(learned.learned or 0, 'row')} learned")


def _label_of(pair: str) -> tuple[str, Any]:
    sample, equals, label = pair.rpartition("=")
    if not equals or not sample:
        raise BadInput(f"labels are ID=LABEL, got {pair!r}")
    return sample, _value_of(label)


def _option_of(pair: str) -> tuple[str, Any]:
    name, equals, value = pair.partition("=")
    if not equals or not name:
        raise BadInput(f"--option needs NAME=VALUE, got {pair!r}")
    return name, _value_of(value)


def _value_of(text: str) -> Any:
    """JSON, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@command()
def refit(
    client: Client,
    model: Model,
    method: Annotated[str | None, typer.Option(help="Solver; default: of the model.")] = None,
    tol: Annotated[float | None, typer.Option(help="Relative gap at which it stops.")] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Last rows of the journal, if none are retained.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Option of the solver: parts=8; repeatable."),
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait until it is done.")] = True,
    as_json: JSON = False,
) -> None:
    """Solve the model's window to the optimum, and let the result enter the model.

    Exit code 3: the result did not enter.

    Example:

        dualstream refit clicks --tol 1e-6
    """
    options = dict(map(_option_of, option)) if option else None
    job = client.refit(model, method=method, tol=tol, rows=rows, options=options)
    if wait:
        job = _ended(client, job, quiet=as_json)
    gaps = f"gap {number_of(job.relative_gap_before)} -> {number_of(job.relative_gap)}"
    report(as_json, job, f"{model}: refit {job.job} by {job.method} is {job.status}, {gaps}")
    if job.reason is not None and not job.is_under_way:
        say_error(job.reason)
    if wait and job.status != "done":
        raise typer.Exit(REFUSED)


def _ended(client: Client, job: Refit, quiet: bool) -> Refit:
    """Wait for the end of a refit, and print its progress."""
    said = -1
    while job.is_under_way:
        time.sleep(ASK_EVERY_S)
        job = client.read_refit(job.model, job.job)
        if job.epochs > said and not quiet:
            said = job.epochs
            say(f"epoch {job.epochs:,}: gap {number_of(job.relative_gap)}")
    return job


@command()
def resume(
    client: Client,
    model: Model,
    rows: Annotated[str, typer.Option(help="`learn` or `drop` the rows in quarantine.")],
    as_json: JSON = False,
) -> None:
    """End a pause of learning that the guard began.

    Example:

        dualstream resume clicks --rows drop
    """
    done = client.resume(model, rows=rows)
    rows = plural(done.learned or 0, "row")
    report(as_json, done, f"{model}: learns again since seq {done.seq:,}; {rows} learned")
