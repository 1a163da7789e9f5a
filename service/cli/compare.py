"""Command that compares learners on a file: compare."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self

import msgspec
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from dualstream.client import BadInput, RowFile
from dualstream.service.cli.commands import app
from dualstream.service.cli.common import INTERRUPTED, JSON, Table, errors, note, report
from dualstream.service.cli.connection import ending, naming
from dualstream.service.cli.rows import Bar, Format, row_files
from dualstream.service.cli.settings_flags import flag, read_settings
from dualstream.wire.plural import plural

LONG_S = 600.0
"""A longer run is announced."""


@app.command()
def compare(
    file: Annotated[
        str | None, typer.Argument(help="CSV, NDJSON, JSON, Arrow or Parquet; - is standard input.")
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Column of the label; default: by names and values.")
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="binary, multiclass or regression; default: by the label.")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="Specification with `columns`, as JSON or a file of it."),
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Sort the rows by this column.")
    ] = None,
    others: Annotated[
        list[str] | None,
        typer.Option(
            "--with", metavar="SPEC", help="Another learner, as JSON or a file of it; repeatable."
        ),
    ] = None,
    peers: Annotated[
        list[str] | None,
        typer.Option(
            "--peer",
            metavar="NAME",
            help="lightgbm, boosting or linear; repeatable; default: by the columns.",
        ),
    ] = None,
    retrain_every: Annotated[
        str | None,
        typer.Option(
            metavar="ROWS|TIME", help="Time between two trainings of a peer; default: 20 trainings."
        ),
    ] = None,
    window: Annotated[
        str, typer.Option(metavar="ROWS|TIME", help="Train peers on the newest rows, such as 30d.")
    ] = "200000",
    delay: Annotated[
        str, typer.Option(metavar="ROWS|TIME", help="Time from a row to its label, for everyone.")
    ] = "0",
    threads: Annotated[int, typer.Option(min=1, help="Threads of the peers.")] = 1,
    frozen: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A saved model: ONNX, or a LightGBM text model."),
    ] = None,
    frozen_from: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="ROW",
            help="First row that counts with --frozen; default: after a tenth.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Rows that the journal of this model has, not a file."),
    ] = None,
    store: Annotated[str | None, flag("store")] = None,
    page: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="Write an HTML page with curves over time."),
    ] = None,
    form: Format = None,
    progress: Bar = None,
    as_json: JSON = False,
) -> None:
    """Compare the default model on a file with LightGBM, scikit-learn and baselines.

    Every row is predicted before it is learned. Peers are trained again on a schedule, with their
    default parameters, on the same rows and columns. Needs no server. Ctrl-C ends with the result
    of the rows so far and exit code 130.

    Examples:

        dualstream compare monday.csv
        dualstream compare payments.parquet --label fraud --time at --delay 7d --retrain-every 1d
        dualstream compare --model payments --store sqlite:///dualstream.db
    """
    from dualstream.service.server import compile_kernels as kernels

    with kernels.compiled_by_processes(errors):
        from dualstream.service.compare.options import Options, span_of
        from dualstream.service.compare.prepare import prepare
        from dualstream.service.compare.result import result_of
        from dualstream.service.compare.run import one_interrupt
        from dualstream.solvers import make_learner

        # Before the progress of the run, which the terminal shows in the same place.
        make_learner({})

    with ending(as_json), ExitStack() as stack:
        if page is not None:
            _check_writable(page)
        if frozen_from is not None and frozen is None:
            raise BadInput(
                "--frozen-from is the first row that counts with --frozen FILE: give both"
            )
        options = Options(
            tuple(peers or ()),
            tuple(_object(one, "--with") for one in others or ()),
            None if retrain_every is None else span_of("--retrain-every", retrain_every),
            span_of("--window", window),
            span_of("--delay", delay),
            threads,
            frozen_from,
        )
        if model is None:
            source = _Source.of_file(file, form, stack, label, task, columns, time, frozen, threads)
        else:
            of_file = (file, form, label, task, columns, time, frozen)
            source = _Source.of_journal(model, store, of_file)
        display = stack.enter_context(_Display(source.size, progress))
        read = source.read(display.on_read)
        run, notes = prepare(read, options)
        run.notes += [f"warning: {warning}" for warning in source.warnings] + notes
        display.announce(run)
        stack.enter_context(one_interrupt())
        run.go(display.on_block)
        display.stop()
        result = result_of(run, read, options, source.name)
        report(as_json, result, *_shown(result))
        if page is not None:
            _write(page, result)
    if run.is_interrupted:
        raise typer.Exit(INTERRUPTED)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where rows come from. `read` takes a listener of bytes or records, and rows."""

    name: str
    read: Callable[[Callable[[int, int], None]], Any]
    size: int | None = None
    warnings: Sequence[str] = ()

    @classmethod
    def of_file(
        cls,
        name: str | None,
        form: str | None,
        stack: ExitStack,
        label: str | None,
        task: str | None,
        columns: str | None,
        time: str | None,
        frozen: str | None,
        threads: int,
    ) -> Self:
        """The rows of a file. Raises BadInput."""
        from dualstream.service.compare.file_rows import SAMPLE, declared, proposed, read_rows
        from dualstream.service.compare.frozen import load
        from dualstream.service.features.infer.sample import read_sample

        if name is None:
            raise BadInput("give a file, or --model ID for the rows of a journal")
        file = _file(name, form, stack)
        sample = read_sample(_from_start(file), SAMPLE)
        warnings: Sequence[str] = ()
        if columns is None:
            spec, warnings = proposed(sample, label, task)
        else:
            spec = declared(_object(columns, "--columns"), sample, label, task)
        saved = None if frozen is None else load(frozen, spec, sample, threads)

        def read(on_read: Callable[[int, int], None]) -> Any:
            return read_rows(_from_start(file), spec, sample, time, on_read, saved)

        return cls(file.name, read, file.size(), warnings)

    @classmethod
    def of_journal(cls, model: str, store: str | None, of_file: Sequence[str | None]) -> Self:
        """The rows of a model's journal. Raises BadInput with options for files."""
        from dualstream.service.compare.journal_rows import read_journal

        if any(one is not None for one in of_file):
            raise BadInput(
                "--model takes the rows of a journal as they are: leave out the file, --format,"
                " --label, --task, --columns, --time and --frozen"
            )
        url = read_settings({} if store is None else {"store": store}).store
        return cls(f"model {model}", partial(read_journal, url, model))


def _check_writable(path: Path) -> None:
    """Raise BadInput before a long run if its report could not be written."""
    target = path if path.exists() else path.parent
    if path.is_dir() or not target.exists() or not os.access(target, os.W_OK):
        raise BadInput(f"--report {path}: it cannot be written")


def _write(path: Path, result: Mapping[str, Any]) -> None:
    """Write the report. Raises BadInput."""
    from dualstream.service.compare.report import report_of

    with naming(f"--report {path}"):
        path.write_text(report_of(result), encoding="utf-8")


def _file(name: str, form: str | None, stack: ExitStack) -> RowFile:
    """The file; what can be read once only is copied to a temporary file. Raises BadInput."""
    files = row_files([name], form, None)
    if len(files) != 1:
        raise BadInput(f"compare reads one file; {name} matches {len(files)}")
    file = files[0]
    if not file.is_pipe:
        return file
    copy = stack.enter_context(tempfile.TemporaryFile())
    with naming(name), nullcontext(file.stream) if file.stream else open(file.name, "rb") as stream:
        shutil.copyfileobj(stream, copy)
    return replace(file, stream=copy)


def _from_start(file: RowFile) -> RowFile:
    if file.stream is not None:
        file.stream.seek(0)
    return file


def _object(text: str, option: str) -> dict[str, Any]:
    """A JSON object, or the one in a file of this name. Raises BadInput."""
    try:
        content = text if text.lstrip().startswith("{") else Path(text).read_text()
    except (OSError, UnicodeDecodeError) as wrong:
        raise BadInput(f"{option} {text}: {getattr(wrong, 'strerror', None) or wrong}") from None
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except msgspec.DecodeError as wrong:
        raise BadInput(f"{option} must be a JSON object or a file of one: {wrong}") from None


class _Display:
    """Progress on standard error: rows that are read, then rows that are done, with errors."""

    def __init__(self, size: int | None, progress: bool | None) -> None:
        self._bar: Progress | None = None
        if sys.stderr.isatty() if progress is None else progress:
            columns = ("{task.description}", BarColumn(), "{task.percentage:>3.0f} %")
            shown = [TextColumn(c, markup=False) if isinstance(c, str) else c for c in columns]
            self._bar = Progress(*shown, TimeElapsedColumn(), console=errors, transient=True)
            self._task = self._bar.add_task("reading", total=size)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()

    def on_read(self, count: int, rows: int) -> None:
        """Show the bytes and rows that are read."""
        if self._bar is not None:
            self._bar.update(
                self._task, completed=count, description=f"reading {plural(rows, 'row')}"
            )

    def announce(self, run: Any) -> None:
        """Say before a long run how long it takes."""
        from dualstream.service.compare.prepare import estimate_s

        seconds = estimate_s(run)
        if seconds > LONG_S:
            note(
                f"This run takes about {seconds / 60:,.0f} minutes for {len(run.rows):,} rows."
                " Ctrl-C ends it with the result of the rows so far.",
                "yellow",
            )
        if self._bar is not None:
            self._bar.update(self._task, completed=0, total=len(run.rows))

    def on_block(self, run: Any, rows: int) -> None:
        """Show the rows that are done and the losses so far."""
        if self._bar is None:
            return
        shown = plural(rows, "row")
        if run.compare_from is not None:
            is_number = run.task == "regression"
            form, what = ("{:.4g}", "MAE") if is_number else ("{:.2%}", "errors")
            losses = ((one.name, run.figures[one.name].loss) for one in run.contestants)
            listed = ", ".join(f"{name} {form.format(loss)}" for name, loss in losses)
            shown += f", {what}: {listed}"
        self._bar.update(self._task, completed=rows, description=shown)


def _shown(result: Mapping[str, Any]) -> Iterator[str | Table]:
    """The result for people."""
    from dualstream.service.compare.tables import figures_table, parts_table

    yield _summary(result)
    if result["compared"]:
        yield _table(*figures_table(result))
        yield _table(*parts_table(result))
    yield from (*result["conclusions"], *result["notes"])


def _summary(result: Mapping[str, Any]) -> str:
    run = result["run"]
    refused = f", {result['refused']:,} refused" if result["refused"] else ""
    rows = f"{result['file']}: {result['rows']:,} rows{refused}, {result['task']},"
    done = f" stopped after row {result['done']:,}," if result["is_interrupted"] else ""
    if not result["compared"]:
        return f"{rows} label {result['label']};{done} nothing is compared yet"
    first = f"compared from row {result['compared_from']:,} on"
    late = f", labels {run['delay']} late" if run["delay"] != "0 rows" else ""
    return f"{rows} label {result['label']};{done} {first}{late}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose numbers are aligned at the right."""
    table = Table(box=None)
    for head in heads:
        is_text = head in ("", "rows", "from", "ahead")
        table.add_column(head, justify="left" if is_text else "right")
    for cells in rows:
        table.add_row(*cells)
    return table
