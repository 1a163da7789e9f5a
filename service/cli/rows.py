"""Commands that send rows: learn, observe, predict."""

import csv
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from glob import glob, has_magic
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from msgspec import UNSET

from dualstream.client import (
    FORMATS,
    BadInput,
    Client,
    ClientError,
    LearnedStream,
    NoRows,
    Progress,
    Refused,
    RowFile,
    kind_of,
)
from dualstream.client.calls import new_key
from dualstream.client.progress_bar import OnProgress, ProgressBar, both
from dualstream.client.resumable_files import STANDARD_INPUT, is_pipe
from dualstream.client.stores import files_of_folder, is_url, source_of, stored_files
from dualstream.service.cli.common import JSON, SOME_REFUSED, print_json, say, say_error
from dualstream.service.cli.connection import PATIENCE_S, Model, command, show_errors
from dualstream.wire.plural import plural
from dualstream.wire.schemas import PredictedMany
from dualstream.wire.text_values import BadValue, value_of

_OF_BODY = (400, 413, 415, 422)
"""Status codes of problems of a body."""
Files = Annotated[
    list[str] | None,
    typer.Argument(
        help="Files of rows (also .gz, .xz, .zst), folders, patterns or URLs; - is standard input."
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="json, ndjson, csv, csv-decimal-comma, arrow, parquet, vw or libsvm; default: by file"
        " name.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(help="Make the keys of chunks from this key, the file name and the chunk number."),
]
Skip = Annotated[
    int, typer.Option(min=0, help="Skip this many chunks at the beginning of a single file.")
]
Bar = Annotated[
    bool | None,
    typer.Option(
        "--progress/--no-progress", help="Show a progress bar; default: only in a terminal."
    ),
]


@command(patience_s=PATIENCE_S)
def learn(
    client: Client,
    model: Model,
    files: Files = None,
    form: Format = None,
    key: Key = None,
    skip: Skip = 0,
    progress: Bar = None,
    as_json: JSON = False,
) -> None:
    """Learn the rows of files, once each, in order and in bounded memory.

    If the run is interrupted, run the same command again; chunks already learned are skipped. Each
    chunk (about 1 MiB) has an idempotency key, made of the file's path and its content up to there.
    The server keeps keys for KEY_TTL_S (1 hour). A URL and a file of a folder is a source, whose
    offset the server keeps.

    Examples:

        dualstream learn clicks monday.csv 'logs/*.ndjson.gz' 'may/*.parquet'
        dualstream learn clicks data/ 's3://bucket/day=2024-*/' https://example.org/rows.csv.gz
        zcat rows.gz | dualstream learn clicks - --format libsvm
    """
    action = _Action(client.learn_file, "learned")
    _send_files(action, model, row_files(files or ["-"], form, key), skip, progress, as_json)


@command(patience_s=PATIENCE_S)
def observe(
    client: Client,
    model: Model,
    files: Files = None,
    form: Format = None,
    key: Key = None,
    skip: Skip = 0,
    progress: Bar = None,
    as_json: JSON = False,
) -> None:
    """Observe rows of files, which need no label: they enter the model's history, once each.

    The model needs `history`, and learns nothing. An interrupted run is resumed as one of `learn`.

    Examples:

        dualstream observe fraud payments.csv 'logs/*.ndjson.gz'
    """
    action = _Action(client.observe_file, "observed")
    _send_files(action, model, row_files(files or ["-"], form, key), skip, progress, as_json)


class _Action(NamedTuple):
    """What is done with the rows of files: the client's method, and its past participle."""

    send: Callable[..., LearnedStream]
    done: str


def _send_files(
    action: _Action,
    model: str,
    named: Sequence[RowFile],
    skip: int,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Send files and print what became of their rows."""
    if skip and (len(named) != 1 or named[0].source):
        raise BadInput("--skip needs exactly one file, which is neither a URL nor of a folder")
    shows = sys.stderr.isatty() if progress is None else progress
    results, empty = [], list[NoRows]()
    for file in named:
        with _naming(file, empty):
            result = _send_file(action, model, file, skip, shows)
            results.append((file, result))
            if not as_json:
                say(_line(action, file, result))
            show_errors(result.errors, f"{file.name}: ")
            for warning in result.warnings or ():
                say_error(f"{file.name}: warning: {warning}")
    _report_empty(empty, len(named))
    if as_json:
        print_json({"files": [_document(file, result) for file, result in results]})
    if any(result.rejected for _, result in results):
        raise typer.Exit(SOME_REFUSED)


def _send_file(action: _Action, model: str, file: RowFile, skip: int, shows: bool) -> LearnedStream:
    sent = skip

    def count(progress: Progress) -> None:
        nonlocal sent
        assert progress.piece is not None
        sent = progress.piece.number + 1

    with ProgressBar(file.name, file.size(), is_file=True) if shows else nullcontext() as bar:
        listener: OnProgress = both(count, bar)
        try:
            return action.send(model, file, skip=skip, on_progress=listener)
        except (ClientError, KeyboardInterrupt):
            if sent > skip:
                how = _how_to_resume(file, sent)
                say_error(f"{file.name}: {plural(sent, 'chunk')} {action.done}; {how}")
            raise


def _how_to_resume(file: RowFile, sent: int) -> str:
    if file.is_pipe and (file.key or "").count(":") == 0:
        return f"to resume, send the same input with --skip {sent}"
    if file.source is not None:
        return "to resume, run the same command again"
    return f"to resume, run the same command again (after KEY_TTL_S, with --skip {sent})"


def _document(file: RowFile, result: LearnedStream) -> dict[str, Any]:
    return {"file": file.name, **msgspec.to_builtins(result)}


def _line(action: _Action, file: RowFile, result: LearnedStream) -> str:
    done = action.done
    if not result.chunks:
        if file.source is not None:
            return f"{file.name}: nothing new, all rows were {done} before"
        return f"{file.name}: nothing sent; all chunks were skipped"
    if result.duplicate:
        return f"{file.name}: nothing new, {plural(result.chunks, 'chunk')} {done} before"
    is_count = result.learned is None or done == "observed"
    rows = f"{plural((result.count if is_count else result.learned) or 0, 'row')} {done}"
    before = f", {result.duplicate_chunks} of {plural(result.chunks, 'chunk')} before" * bool(
        result.duplicate_chunks
    )
    duplicates = f", {result.duplicate_rows:,} known by their ids" * bool(result.duplicate_rows)
    refused = f", {result.rejected:,} refused" * bool(result.rejected)
    loss = "" if result.loss is None else f", loss {result.loss:.4f}"
    return f"{file.name}: {rows}{before}{duplicates}{refused}{loss}, seq {result.seq}"


@command(patience_s=PATIENCE_S)
def predict(
    client: Client,
    model: Model,
    files: Files = None,
    features: Annotated[
        list[str] | None,
        typer.Option("-x", help="NAME=VALUE: a feature or column of a single row; repeatable."),
    ] = None,
    form: Format = None,
    version: Annotated[str | None, typer.Option(help="Score with this version.")] = None,
    min_seq: Annotated[
        int | None, typer.Option(min=0, help="Wait up to 2 s until the state has this seq.")
    ] = None,
    as_json: JSON = False,
) -> None:
    """Score the rows of files, or one row. Labels in the files are ignored.

    Prints CSV, one line per row: score, label, probability, and the interval or set of a model that
    has some; empty fields for a refused row. With --json one object per row.

    Examples:

        dualstream predict clicks tuesday.csv > scores.csv
        dualstream predict clicks -x age=39 -x city=Oslo --json
    """
    rejected = 0
    write = _objects() if as_json else _records()
    if features:
        if files:
            raise BadInput("give either -x or files")
        texts = _texts(features)
        # Columns have types, by which the server reads texts: zip 02134 is no number.
        is_flat = client.get(model).spec.get("columns") is not None
        row = texts if is_flat else _values(texts)
        result = client.predict(model, row, version=version, min_seq=min_seq)
        write(_scored(result.as_many()))
        return
    named, empty = row_files(files or ["-"], form, None), list[NoRows]()
    for file in named:
        before = 0
        with _naming(file, empty):
            for answer in client.predict_file(model, file, min_seq=min_seq, version=version):
                write(_scored(answer))
                if answer.rejected is not UNSET:
                    rejected += answer.rejected
                    _show_refused(file, answer, before)
                before += len(answer.scores)
    _report_empty(empty, len(named))
    if rejected:
        raise typer.Exit(SOME_REFUSED)


@contextmanager
def _naming(file: RowFile, empty: list[NoRows]) -> Iterator[None]:
    """Add the error of a file without rows to the list; the other files are still read.

    The error of a body that the server refuses names the file.
    """
    try:
        yield
    except NoRows as none:
        empty.append(none)
    except Refused as refused:
        if refused.status in _OF_BODY:
            refused.detail = f"{file.name}: {refused.detail}"
        raise


def _report_empty(empty: list[NoRows], files: int) -> None:
    """Warn of files without rows. Raises NoRows if no file has any."""
    if empty and len(empty) == files:
        raise empty[0] if files == 1 else NoRows(f"none of the {files} files has rows")
    for none in empty:
        say_error(f"warning: {none}")


def _show_refused(file: RowFile, answer: PredictedMany, before: int) -> None:
    for error in answer.errors or ():
        error["index"] += before
    show_errors(answer.errors, f"{file.name}: ")


def _texts(features: Sequence[str]) -> dict[str, str]:
    """Parse NAME=VALUE. Raises BadInput for a repeated or empty name."""
    row: dict[str, str] = {}
    for feature in features:
        name, equals, text = feature.partition("=")
        if not equals or not name:
            raise BadInput(f"-x needs NAME=VALUE, got {feature!r}")
        if name in row:
            raise BadInput(f"-x {name} is repeated; give every feature once")
        row[name] = text
    return row


def _values(texts: Mapping[str, str]) -> dict[str, Any]:
    """Values as in CSV; an empty text is an absent feature.

    Raises BadInput for a number that is not finite.
    """
    row: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            value = value_of(text)
        except BadValue as bad:
            raise BadInput(f"-x {name}: {bad}") from None
        if value in (math.inf, -math.inf):
            raise BadInput(f"-x {name}: {text} is not a finite number")
        if text:
            row[name] = value
    return row


Columns = Mapping[str, Sequence[Any]]


def _scored(answer: PredictedMany) -> Columns:
    chances = answer.probabilities or [None] * len(answer.scores)
    columns: dict[str, list[Any]] = {"score": answer.scores, "label": answer.labels}
    return columns | {"probability": chances} | answer.fields_of_features()


def _records() -> Any:
    """Writes CSV with the columns of the first rows; lists are JSON texts."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    names = list[str]()

    def write(columns: Columns) -> None:
        if not names:
            names.extend(columns)
            writer.writerow(names)
        nothing = [None] * len(columns["score"])
        rows = zip(*[columns.get(name, nothing) for name in names], strict=True)
        writer.writerows([_csv_value(value) for value in row] for row in rows)

    return write


def _csv_value(value: Any) -> Any:
    is_json = isinstance(value, list | dict)
    return msgspec.json.encode(value).decode() if is_json else value


def _objects() -> Any:
    def write(columns: Columns) -> None:
        for row in zip(*columns.values(), strict=True):
            print_json(dict(zip(columns, row, strict=True)))

    return write


def row_files(names: Sequence[str], form: str | None, key: str | None) -> list[RowFile]:
    """Files of the arguments, without duplicates, in order; matches of a pattern are sorted.

    With `key` each file has the key KEY:NAME. Raises BadInput for a missing file.
    """
    if form is not None and form not in FORMATS:
        raise BadInput(f"unknown format {form!r}; choose one of {', '.join(FORMATS)}")
    files = {file.name: file for name in names for file in _files(name, form, key)}
    if key is not None:
        _check_bases(list(files))
    return list(files.values())


def _files(name: str, form: str | None, key: str | None) -> Iterator[RowFile]:
    """The files of one argument. URLs and files of folders are sources, unless there is a key."""
    if not is_url(name):
        for path, is_in_folder in _paths(name):
            file = _row_file(path, form, key)
            if is_in_folder and key is None:
                file = replace(file, source=source_of(str(Path(path).resolve())))
            yield file
        return
    for stored in stored_files(name):
        # The options of a URL are no part of the file's name.
        kind = kind_of(stored.name.partition("?")[0]) if form is None else FORMATS[form]
        own = None if key is None else f"{key}:{stored.name.rpartition('/')[2]}"
        source = None if own else source_of(stored.name)
        yield RowFile(stored.name, kind, own, stored=stored, source=source)


def _row_file(name: str, form: str | None, key: str | None) -> RowFile:
    own = None if key is None else f"{key}:{Path(name).name}"
    # A pipe with a name of its own, as mkfifo makes, is like a file.
    if name != STANDARD_INPUT and is_pipe(name) and not Path(name).suffix:
        if form is None:
            raise BadInput(f"{name} is a pipe and needs a format: --format {'|'.join(FORMATS)}")
        return RowFile(name, FORMATS[form], own or new_key())
    if name != STANDARD_INPUT:
        return RowFile(name, kind_of(name) if form is None else FORMATS[form], own)
    if form is None:
        raise BadInput(f"standard input needs a format: --format {'|'.join(FORMATS)}")
    # Standard input is new on every run, unless a key identifies it.
    return RowFile(name, FORMATS[form], own or new_key(), sys.stdin.buffer)


def _paths(name: str) -> Iterator[tuple[str, bool]]:
    """The paths of one argument, and whether each was found in a folder."""
    if name == STANDARD_INPUT:
        yield name, False
        return
    path, is_folder = Path(name), name.endswith("/")
    if has_magic(name) and not path.exists():
        matched = [match for match in glob(name, recursive=True) if Path(match).is_file()]
        if is_folder:
            folders = glob(name, recursive=True)
            matched = [file for folder in folders for file in files_of_folder(folder)]
        if not matched:
            raise BadInput(f"no file matches {name}")
        for file in sorted(matched):
            yield _normal(file), is_folder
        return
    if not path.exists():
        raise BadInput(f"no file {name}{'' if path.is_absolute() else f' in {Path.cwd()}'}")
    if path.is_dir():
        matched = files_of_folder(name)
        if not matched:
            raise BadInput(f"no file in the folder {name}")
        for file in matched:
            yield _normal(file), True
        return
    # The target of /dev/fd/63 cannot be opened by its path.
    yield name if is_pipe(name) else _normal(name), False


def _normal(name: str) -> str:
    """Normalize a path, relative to the current folder if inside it."""
    resolved, here = Path(name).resolve(), Path.cwd()
    return str(resolved.relative_to(here) if resolved.is_relative_to(here) else resolved)


def _check_bases(names: Sequence[str]) -> None:
    bases = [Path(name).name for name in names]
    for base in bases:
        if bases.count(base) > 1:
            raise BadInput(f"with --key, file names must differ: {base} occurs twice")
