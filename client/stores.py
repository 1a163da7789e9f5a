"""Files named by URL or by folder: object stores, web servers, local folders.

pyarrow reads s3:// and gs://, with the credentials and the endpoint of the usual environment
variables (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `GOOGLE_APPLICATION_CREDENTIALS`, ...). Files of
http:// and https:// are downloaded into a temporary file first: a connection that waits for the
learner times out, and many web servers have no ranges, which Parquet needs.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import has_magic
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, quote

import httpx

from dualstream.client.arrow_tables import pyarrow_for
from dualstream.client.errors import BadInput
from dualstream.client.proxies import is_local, valid_proxy

STORES, WEB = ("s3", "gs"), ("http", "https")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?]*)([^?]*)(\?.*)?", re.DOTALL)
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
_SIGNATURES = ("signature", "sig", "token")
"""Ends of the names of parameters that sign a URL: X-Amz-Signature, X-Goog-Signature, sig."""
_DENIED = ("ACCESS_DENIED", "ACCESS_KEY_ID", "SIGNATURE", "PERMISSION_DENIED", "UNAUTHENTICATED")
_BUFFER = 4 * 1024 * 1024
"""Bytes of one request to an object store for text."""
_TIMEOUT_S = 60.0
_RETRIES = "retry_limit_seconds"
"""Option of gs://, 15 minutes by default."""


@dataclass(frozen=True)
class StoredFile:
    """A file of an object store or a web server."""

    name: str
    """Its URL without credentials."""
    size: int | None
    opens: Callable[[bool], AbstractContextManager[Any]]
    """Opens it for reading, with True for reading at any position."""

    @contextmanager
    def opened(self, is_table: bool) -> Iterator[BinaryIO]:
        """The open file. Raises BadInput."""
        try:
            with self.opens(is_table) as opened:
                yield opened
        except (OSError, httpx.HTTPError) as wrong:
            raise unreadable(self.name, wrong) from None


def is_url(name: str) -> bool:
    return _URL.match(name) is not None


def stored_files(url: str) -> list[StoredFile]:
    """The files of a URL, sorted by name.

    `s3://` and `gs://` name a file, a folder, or the files of a pattern. A folder, and a pattern
    that ends with a slash, have all files below, except hidden ones (`_SUCCESS`, `.tmp`).
    Raises BadInput if no file is found, the store refuses, or pyarrow is missing.
    """
    parts = _URL.fullmatch(url)
    assert parts is not None
    scheme, host, path, options = parts[1].lower(), parts[2], parts[3], parts[4] or ""
    host_only = host.rpartition("@")[2]
    if scheme in WEB:
        signed = any(key.lower().endswith(_SIGNATURES) for key, _ in parse_qsl(options[1:]))
        name = f"{scheme}://{host_only}{path}{'' if signed else options}"
        return [StoredFile(name, None, lambda _: _downloaded(url))]
    if scheme not in STORES:
        schemes = ", ".join(f"{name}://" for name in (*STORES, *WEB))
        raise BadInput(f"{scheme}:// is no known kind of URL; known: {schemes}")
    if scheme == "gs" and _RETRIES not in options:
        options += f"{'&' if options else '?'}{_RETRIES}={_TIMEOUT_S}"
    shown = f"{scheme}://{host_only}{path}"
    pa = pyarrow_for(shown)
    import pyarrow.fs as filesystems

    try:
        # Names of objects are taken as they are; only the URL that pyarrow parses is quoted.
        store, _ = filesystems.FileSystem.from_uri(f"{scheme}://{host}{quote(path)}{options}")
        infos = _listed(filesystems, store, host_only + path)
    except (pa.ArrowException, OSError) as wrong:
        raise unreadable(shown, wrong) from None
    if not infos:
        raise BadInput(f"no file {'matches ' * has_magic(path)}{shown}")
    return [
        StoredFile(f"{scheme}://{info.path}", info.size, _opener(store, info.path))
        for info in sorted(infos, key=lambda info: str(info.path))
    ]


def _listed(filesystems: Any, store: Any, path: str) -> list[Any]:
    """Information of the files that a path or a pattern names."""
    patterns, is_folder = path.strip("/").split("/"), path.endswith("/")
    fixed = next((at for at, part in enumerate(patterns) if has_magic(part)), len(patterns))
    base = "/".join(patterns[:fixed])
    if fixed == len(patterns):
        info = store.get_file_info(base)
        if info.is_file and not is_folder:
            return [info]
        is_folder = True
    below = store.get_file_info(
        filesystems.FileSelector(base, allow_not_found=True, recursive=True)
    )
    return [
        info
        for info in below
        if info.is_file and _matches(info.path.split("/"), patterns, is_folder)
    ]


def _matches(names: Sequence[str], patterns: Sequence[str], is_folder: bool) -> bool:
    """Do these names of a path match, or is it in a folder that matches?"""
    if not patterns:
        return bool(names) and not _is_hidden(names) if is_folder else not names
    first, rest = patterns[0], patterns[1:]
    if first == "**" and _matches(names, rest, is_folder):
        return True
    if not names or (names[0].startswith(".") and not first.startswith(".")):
        return False
    if first == "**":
        return _matches(names[1:], patterns, is_folder)
    return fnmatchcase(names[0], first) and _matches(names[1:], rest, is_folder)


def _is_hidden(names: Sequence[str]) -> bool:
    return any(name.startswith((".", "_")) for name in names)


def _opener(store: Any, path: str) -> Callable[[bool], AbstractContextManager[Any]]:
    def opens(is_table: bool) -> Any:
        if is_table:
            return store.open_input_file(path)
        return store.open_input_stream(path, compression=None, buffer_size=_BUFFER)

    return opens


@contextmanager
def _downloaded(url: str) -> Iterator[Any]:
    """The file of a web server, with its bytes as stored."""
    headers = {"accept-encoding": "identity"}
    with TemporaryFile() as file:
        with (
            valid_proxy(),
            httpx.stream(
                "GET",
                url,
                headers=headers,
                follow_redirects=True,
                timeout=_TIMEOUT_S,
                trust_env=not is_local(httpx.URL(url).host),
            ) as response,
        ):
            response.raise_for_status()
            for block in response.iter_raw():
                file.write(block)
        file.seek(0)
        yield file


def unreadable(name: str, wrong: Exception) -> BadInput:
    """The error of a file as one line, without the credentials that a URL may have."""
    if isinstance(wrong, FileNotFoundError):
        return BadInput(f"no file {name}")
    if isinstance(wrong, httpx.HTTPStatusError):
        answer = wrong.response
        return BadInput(f"{name}: the server answered {answer.status_code} {answer.reason_phrase}")
    why = " ".join(str(getattr(wrong, "strerror", None) or wrong).split()) or type(wrong).__name__
    if any(text in why for text in _DENIED):
        why = f"access denied; check the credentials, such as AWS_ACCESS_KEY_ID ({why})"
    return BadInput(f"{name}: {why}")


def files_of_folder(folder: str) -> list[str]:
    """The files in a local folder and below, sorted by name, except hidden ones."""
    below = (path for path in Path(folder).rglob("*") if path.is_file())
    return sorted(str(path) for path in below if not _is_hidden(path.relative_to(folder).parts))


def source_of(name: str) -> str:
    """Name of the source that a file is: its URL or path, in ASCII."""
    return quote(name, safe=_PRINTABLE)
