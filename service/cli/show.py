"""Commands that show a server or a model: status, show, metrics, members, weights, versions."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
import typer

from dualstream.client import Client
from dualstream.service.cli.common import JSON, REFUSED, Table, number_of, report
from dualstream.service.cli.connection import Model, command
from dualstream.wire.plural import plural
from dualstream.wire.printable import printable_json
from dualstream.wire.responses import Segment, SegmentMetrics

_MIB = 1024 * 1024


@command()
def status(client: Client, as_json: JSON = False) -> None:
    """Show whether the server is ready, its store, and what is wrong. Exit code 3: not ready.

    Example:

        dualstream status
    """
    answer = client.ready()
    report(as_json, answer, *_status_lines(answer))
    if not answer["ready"]:
        raise typer.Exit(REFUSED)


def _status_lines(answer: Mapping[str, Any]) -> Iterable[str]:
    word = "degraded" if "degraded" in answer else "ready" if answer["ready"] else "not ready"
    yield f"{word}: {answer['reason']}" if "reason" in answer else word
    yield f"store       {answer['store']}, durability {answer['durability']}"
    yield f"models      {answer['models']:,} in memory, {answer['models_bytes'] / _MIB:,.1f} MiB"
    yield f"identity    {answer['identity']}"
    lag = answer["lag"]
    if lag["records"]:
        yield f"lag         {plural(lag['records'], 'record')}, {lag['seconds']:.1f} s"
    for model, reason in answer["unreadable"].items():
        yield f"unreadable  {model}: {reason}"


@command()
def show(client: Client, model: Model, as_json: JSON = False) -> None:
    """Show a model: counts, errors, the best baseline and its specification.

    Example:

        dualstream show clicks
    """
    info, metrics = client.get(model), client.metrics(model)
    lines = [
        f"{info.id}: seq {info.seq:,}, created {info.created:%Y-%m-%d %H:%M}",
        f"samples     {info.samples or 0:,} learned, {info.rejected or 0:,} rejected",
    ]
    rolling = metrics["rolling"]
    name = "error_rate" if "error_rate" in rolling else "mae"
    baselines = {kind: one.get(name) for kind, one in rolling["baselines"].items()}
    losses = {kind: value for kind, value in baselines.items() if value is not None}
    if rolling["rows"] and losses:
        best = min(losses, key=lambda kind: losses[kind])
        what = f"last {plural(rolling['rows'], 'row')}: {number_of(rolling[name])}"
        lines.append(f"{name:<11} {what}, best baseline {number_of(losses[best])} ({best})")
    spec = printable_json(msgspec.json.format(msgspec.json.encode(info.spec), indent=2).decode())
    document = {**msgspec.to_builtins(info), "metrics": metrics}
    report(as_json, document, *lines, f"spec        {spec}")


@command()
def metrics(
    client: Client,
    model: Model,
    by: Annotated[
        str | None, typer.Option(help="Show them by the values of this column of `segments`.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Show progressive metrics: since the start, over the last 1,000 rows, and fading.

    A row counts with the prediction from before it was learned.

    Examples:

        dualstream metrics clicks
        dualstream metrics clicks --by country
    """
    if by is not None:
        _show_segments(client.segments(model, by), as_json)
        return
    answer = client.metrics(model)
    kinds = ("since_start", "rolling", "fading")
    table = Table("", *(kind.replace("_", " ") for kind in kinds), box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    flat = {kind: dict(_flat(answer[kind])) for kind in kinds}
    for name in ("costs", "alerts"):
        for kind, figures in answer.get(name, {}).items():
            if kind in kinds:
                flat[kind] |= _flat(figures, f"{name}.")
    for one in answer.get("intervals", ()):
        name = f"coverage {one['level']}"
        flat["since_start"][name], flat["rolling"][name] = one["coverage"], one["recent_coverage"]
    names = dict.fromkeys(name for one in flat.values() for name in one)
    for name in names:
        table.add_row(name, *(number_of(flat[kind].get(name)) for kind in kinds))
    report(
        as_json,
        answer,
        f"{model}: {plural(answer['samples'], 'sample')}, seq {answer['seq']:,}",
        table,
    )


def _show_segments(answer: SegmentMetrics, as_json: bool) -> None:
    """Table of the segments since the start; harm of the latest rows, too."""
    figures = [_figures_of(one) for one in answer.since_start]
    names = list(figures[0]) if figures else []
    table = Table(answer.by, "rows", "harm", "recent harm", *names, box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    recent = {one.value: one.harm for one in answer.fading[1:]}
    for at, (one, shown) in enumerate(zip(answer.since_start, figures, strict=True)):
        harms = (one.harm, recent.get(one.value)) if at else (None, None)
        numbers = map(number_of, (*harms, *shown.values()))
        table.add_row(one.value, f"{one.rows:,.0f}", *numbers)
    line = f"{answer.model}: seq {answer.seq:,}, harm in {answer.measure.replace('_', ' ')}"
    report(as_json, answer, line, table)


def _figures_of(segment: Segment) -> dict[str, float | None]:
    """The quantities that a segment has, by their names in the table."""
    names = ("error_rate", "mae", "log_loss", "mean_prediction", "mean_label", "alert_rate")
    figures = {name.replace("_", " "): getattr(segment, name) for name in names}
    figures = {name: value for name, value in figures.items() if value is not None}
    coverage = segment.coverage or {}
    return figures | {f"coverage {level}": rate for level, rate in coverage.items()}


def _flat(metrics: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, float | None]]:
    """Numbers of nested objects: `baselines.last_label.error_rate`."""
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is None or isinstance(value, int | float):
            yield prefix + name, value


@command()
def members(client: Client, model: Model, as_json: JSON = False) -> None:
    """Show the members of a portfolio, the heaviest first.

    Example:

        dualstream members clicks
    """
    answer = client.members(model)
    table = Table("member", "weight", "loss", "error", "last loss", "last error", "", box=None)
    for column in table.columns[1:6]:
        column.justify = "right"
    for one in sorted(answer.members, key=lambda one: -one.weight):
        counted = (one.since_start, one.rolling)
        numbers = [number_of(v) for some in counted for v in (some.loss, some.error_rate)]
        state = "promoted" if one.name == answer.promoted else "" if one.active else "inactive"
        table.add_row(one.name, f"{one.weight:.3f}", *numbers, state)
    report(as_json, answer, table)


@command()
def weights(
    client: Client,
    model: Model,
    top: Annotated[int, typer.Option(min=1, max=10_000, help="Number of weights.")] = 20,
    member: Annotated[str | None, typer.Option(help="Weights of this member.")] = None,
    as_json: JSON = False,
) -> None:
    """Show the largest weights of a linear model or member.

    Example:

        dualstream weights clicks --top 10
    """
    answer = client.weights(model, top=top, member=member)
    has_labels = any(one.label is not None for one in answer.weights)
    table = Table("feature", *(["label"] if has_labels else []), "weight", box=None)
    table.columns[-1].justify = "right"
    for one in answer.weights:
        label = [str(one.label)] if has_labels else []
        table.add_row(one.name or str(one.index), *label, f"{one.weight:.6g}")
    line = (
        f"{answer.nonzeros:,} of {plural(answer.dim, 'weight')} not 0; intercept {answer.intercept}"
    )
    report(as_json, answer, table, line)


@command()
def versions(
    client: Client,
    model: Model,
    take: Annotated[
        str | None, typer.Option("--take", help="Save the state as a version of this name.")
    ] = None,
    note: Annotated[str, typer.Option(help="Note of the saved version.")] = "",
    as_json: JSON = False,
) -> None:
    """List the versions of a model, or save one.

    A version is a full copy of the model, to which `dualstream rollback` goes back.

    Examples:

        dualstream versions clicks
        dualstream versions clicks --take before-sale --note "prices change tomorrow"
    """
    if take is not None:
        client.take_version(model, take, note=note)
    answer = client.versions(model)
    table = Table("version", "seq", "created", "bytes", "digest", "note", box=None)
    for one in answer.versions:
        created = f"{one.created:%Y-%m-%d %H:%M}"
        table.add_row(
            one.name, f"{one.seq:,}", created, f"{one.bytes:,}", one.digest[:12], one.note
        )
    report(as_json, answer, table)
