"""File arguments of learn and predict: paths, glob patterns, `-`."""

import sys
from collections.abc import Iterator, Sequence
from glob import glob, has_magic
from pathlib import Path

from dualstream.client import FORMATS, BadInput, RowFile, kind_of
from dualstream.client.calls import new_key
from dualstream.client.files import STANDARD_INPUT


def row_files(names: Sequence[str], form: str | None, key: str | None) -> list[RowFile]:
    """Files of the arguments, without duplicates, in order; matches of a pattern are sorted.

    With `key` each file has the key KEY:NAME. Raises BadInput for a missing file.
    """
    if form is not None and form not in FORMATS:
        raise BadInput(f"unknown format {form!r}; choose one of {', '.join(FORMATS)}")
    found = list(dict.fromkeys(path for name in names for path in _paths(name)))
    if key is not None:
        _check_bases(found)
    return [_row_file(name, form, key) for name in found]


def _row_file(name: str, form: str | None, key: str | None) -> RowFile:
    own = None if key is None else f"{key}:{Path(name).name}"
    if name != STANDARD_INPUT:
        return RowFile(name, kind_of(name) if form is None else FORMATS[form], own)
    if form is None:
        raise BadInput(f"standard input needs a format: --format {'|'.join(FORMATS)}")
    # Standard input is new on every run, unless a key identifies it.
    return RowFile(name, FORMATS[form], own or new_key(), sys.stdin.buffer)


def _paths(name: str) -> Iterator[str]:
    if name == STANDARD_INPUT:
        yield name
        return
    path = Path(name)
    if has_magic(name) and not path.exists():
        matched = sorted(found for found in glob(name, recursive=True) if Path(found).is_file())
        if not matched:
            raise BadInput(f"no file matches {name}")
        yield from map(_normal, matched)
        return
    if not path.exists():
        raise BadInput(f"no file {name}")
    if path.is_dir():
        raise BadInput(f"{name} is a folder; name its files, e.g. '{name.rstrip('/')}/*'")
    yield _normal(name)


def _normal(name: str) -> str:
    """Normalize a path, relative to the current folder if inside it."""
    resolved, here = Path(name).resolve(), Path.cwd()
    return str(resolved.relative_to(here) if resolved.is_relative_to(here) else resolved)


def _check_bases(names: Sequence[str]) -> None:
    bases = [Path(name).name for name in names]
    for base in bases:
        if bases.count(base) > 1:
            raise BadInput(f"with --key, file names must differ: {base} occurs twice")
