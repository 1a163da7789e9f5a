"""Files as they are named in a terminal: paths, patterns, `-`."""

import sys
from collections.abc import Iterator, Sequence
from glob import glob, has_magic
from pathlib import Path

from dualstream.client import FORMATS, BadInput, RowFile, kind_of
from dualstream.client.calls import new_key
from dualstream.client.files import STANDARD_INPUT


def row_files(names: Sequence[str], form: str | None, key: str | None) -> list[RowFile]:
    """The files that are meant, each once, in the order in which they are named.

    Patterns stand for what they match, sorted. Under a `key` each file has one of its own, made of
    it and of the file's name. Raises BadInput for what is not there, before anything is read.
    """
    if form is not None and form not in FORMATS:
        raise BadInput(f"no format {form!r}; there are: {', '.join(FORMATS)}")
    found = list(dict.fromkeys(place for name in names for place in _places(name)))
    if key is not None:
        _check_bases(found)
    return [_row_file(name, form, key) for name in found]


def _row_file(name: str, form: str | None, key: str | None) -> RowFile:
    own = None if key is None else f"{key}:{_base(name)}"
    if name != STANDARD_INPUT:
        return RowFile(name, kind_of(name) if form is None else FORMATS[form], own)
    if form is None:
        raise BadInput(
            f"standard input has no name to tell its format: --format {'|'.join(FORMATS)}"
        )
    # What comes in is new each time, unless a key says that it is known.
    return RowFile(name, FORMATS[form], own or new_key(), sys.stdin.buffer)


def _places(name: str) -> Iterator[str]:
    if name == STANDARD_INPUT:
        yield name
        return
    path = Path(name)
    if has_magic(name) and not path.exists():
        matched = sorted(place for place in glob(name, recursive=True) if Path(place).is_file())
        if not matched:
            raise BadInput(f"no file matches {name}")
        yield from map(_normal, matched)
        return
    if not path.exists():
        raise BadInput(f"no file {name}")
    if path.is_dir():
        raise BadInput(f"{name} is a folder: name its files, as in '{name.rstrip('/')}/*'")
    yield _normal(name)


def _normal(name: str) -> str:
    """The same for the same file, as far as names tell; short where it can be."""
    resolved, here = Path(name).resolve(), Path.cwd()
    return str(resolved.relative_to(here) if resolved.is_relative_to(here) else resolved)


def _base(name: str) -> str:
    return Path(name).name


def _check_bases(names: Sequence[str]) -> None:
    bases = [_base(name) for name in names]
    for name, base in zip(names, bases, strict=True):
        if bases.count(base) > 1:
            raise BadInput(f"under a key files have names of their own, and {name} has not")
