"""API keys: scopes, model patterns, rates, and the file of keys.

A key is 256 random bits. The file, or the environment, has one line for each key, with its digest:

    NAME sha256:DIGEST SCOPE [PATTERN,PATTERN...] [requests=N] [rows=N]

`requests` and `rows` are rates per second. A slow hash is not needed: 256 random bits cannot be
guessed.
"""

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import stat
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from fnmatch import translate
from pathlib import Path

log = logging.getLogger("dualstream.keys")

RELOAD_INTERVAL_S = 1.0
"""Interval at which the file of keys is checked for changes."""
SECRET_BYTES = 32
PREFIX = "ds_"
"""Prefix by which secret scanners recognise a key in files and logs."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_PATTERN = re.compile(r"[A-Za-z0-9._?*-]{1,128}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


_RATE = re.compile(r"(requests|rows)=(\d{1,9}|any)")
ANY = 0
"""Rate of a key without a limit, on a server with a default limit."""


class BadKeys(ValueError):
    """Keys that cannot be parsed. The message has the line number and never the content."""


class KeyScope(IntEnum):
    """Permissions of a key; each scope includes those below it.

    LEARN includes PREDICT because answers to learn contain scores.
    """

    NOTHING = 0
    """Required by public routes. No key has this scope."""
    PREDICT = 1
    LEARN = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """The scope's name in lines, flags and answers."""
        return self.name.lower()


SCOPES = {scope.word: scope for scope in KeyScope if scope}


@dataclass(frozen=True)
class Key:
    """A key as the server knows it: its digest, not the key."""

    name: str
    digest: bytes = field(repr=False)
    scope: KeyScope
    patterns: tuple[str, ...] = ()
    """Patterns of model ids: `*` is any text, `?` any character. Empty: all models."""
    requests: int | None = None
    rows: int | None = None
    """Rate limits per second; None: the default of the settings."""
    _match: re.Pattern[str] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        joined = "|".join(map(translate, self.patterns))
        object.__setattr__(self, "_match", re.compile(joined) if joined else None)

    @property
    def sees_all(self) -> bool:
        return self._match is None

    def may_see(self, model_id: str) -> bool:
        """Whether the id matches the key's patterns; the model need not exist."""
        return self._match is None or self._match.fullmatch(model_id) is not None

    def line(self) -> str:
        """The key's line in the file of keys."""
        words = [self.name, f"sha256:{self.digest.hex()}", self.scope.word]
        words += [",".join(self.patterns)] if self.patterns else []
        rates = (("requests", self.requests), ("rows", self.rows))
        words += [f"{unit}={rate or 'any'}" for unit, rate in rates if rate is not None]
        return " ".join(words)


def digest_of(secret: bytes) -> bytes:
    """SHA-256 of a key."""
    return hashlib.sha256(secret).digest()


def new_key(
    name: str,
    scope: str,
    patterns: Sequence[str] = (),
    requests: int | None = None,
    rows: int | None = None,
) -> tuple[str, Key]:
    """A new random key, and its entry for the file. Raises BadKeys."""
    random = secrets.token_bytes(SECRET_BYTES)
    secret = PREFIX + urlsafe_b64encode(random).decode().rstrip("=")
    key = _key_of("a new key", name, digest_of(secret.encode()), scope, patterns)
    return secret, replace(key, requests=requests, rows=rows)


def parse_keys(text: str, source: str) -> list[Key]:
    """Parse lines of keys, or one line separated by `;`. Raises BadKeys, which names `place`."""
    keys = []
    for number, line in enumerate(text.replace(";", "\n").splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        at = f"{source}, line {number}"
        rates: dict[str, int] = {}
        while len(words) > 3 and (of_rate := _RATE.fullmatch(words[-1])):
            rates[of_rate[1]] = ANY if of_rate[2] == "any" else int(of_rate[2])
            if of_rate[2].strip("0") == "":
                raise BadKeys(f"{at}: a rate must be a number of at least 1, or any")
            words.pop()
        if len(words) not in (3, 4):
            how = "NAME sha256:DIGEST SCOPE [PATTERN,PATTERN...] [requests=N] [rows=N]"
            raise BadKeys(f"{at}: expected {how}")
        name, digest, scope, *models = words
        # The message does not quote the word: it could be a key in clear.
        of = _DIGEST.fullmatch(digest)
        if of is None:
            raise BadKeys(f"{at}: the digest must be sha256: and 64 hexadecimal digits")
        patterns = models[0].split(",") if models else ()
        key = _key_of(at, name, bytes.fromhex(of[1]), scope, patterns)
        requests, rows = rates.get("requests"), rates.get("rows")
        keys.append(replace(key, requests=requests, rows=rows))
    return keys


def _key_of(at: str, name: str, digest: bytes, scope: str, patterns: Sequence[str]) -> Key:
    if not _NAME.fullmatch(name):
        raise BadKeys(f"{at}: a name must have 1 to 64 characters of A-Z a-z 0-9 . _ @ -")
    if scope not in SCOPES:
        raise BadKeys(f"{at}: the scope must be one of {', '.join(SCOPES)}")
    if not all(map(_PATTERN.fullmatch, patterns)):
        raise BadKeys(f"{at}: a model pattern can only contain A-Z a-z 0-9 . _ - * ?")
    return Key(name, digest, SCOPES[scope], tuple(patterns))


class KeyRing:
    """Index of valid keys, from the settings and from a file that is reloaded when it changes."""

    def __init__(self, keys: str | None, file: Path | None) -> None:
        """Raises BadKeys if there is no key, or one cannot be parsed."""
        self._file = file
        self._fixed = parse_keys(keys or "", "DUALSTREAM_KEYS")
        self._seen = self._stamp()
        self._keys = self._indexed(self._read())
        if not self._keys:
            sources = [] if keys is None else ["DUALSTREAM_KEYS"]
            sources += [] if file is None else [str(file)]
            raise BadKeys(f"no key in {' and '.join(sources)}: add one made by dualstream new-key")

    def find(self, secret: bytes) -> Key | None:
        """The valid key of this secret, or None.

        Lookup time reveals nothing about valid keys: it is by SHA-256 digest, whose prefix an
        attacker cannot choose, in a dict with a per-process hash seed.
        """
        digest = digest_of(secret)
        key = self._keys.get(digest)
        if key is None or not hmac.compare_digest(key.digest, digest):
            return None
        return key

    async def watch(self) -> None:
        """Reload the file whenever it changes, until cancelled. Invalid files are ignored."""
        while self._file is not None:
            await asyncio.sleep(RELOAD_INTERVAL_S)
            await asyncio.to_thread(self.reload_if_changed)

    def reload_if_changed(self) -> None:
        """Read the file again if it has changed."""
        seen = self._stamp()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._keys = self._indexed(self._read())
        except BadKeys as wrong:
            log.error("the file of keys was not reloaded, the previous keys stay valid: %s", wrong)
        else:
            log.warning("the file of keys was reloaded: %d keys are valid", len(self._keys))

    def _stamp(self) -> tuple[int, int, int] | None:
        """Modification time, inode and size. Taken before reading, so that no change is missed."""
        if self._file is None:
            return None
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    def _read(self) -> list[Key]:
        if self._file is None:
            return self._fixed
        try:
            text = self._file.read_text()
            mode = self._file.stat().st_mode
        except OSError as wrong:
            raise BadKeys(f"keys file {self._file}: {wrong.strerror}") from None
        except UnicodeDecodeError:
            raise BadKeys(f"{self._file}: not valid UTF-8") from None
        if mode & stat.S_IWOTH:
            log.warning("every user of this machine can add a key: chmod o-w %s", self._file)
        return [*self._fixed, *parse_keys(text, str(self._file))]

    @staticmethod
    def _indexed(keys: Iterable[Key]) -> dict[bytes, Key]:
        by_digest: dict[bytes, Key] = {}
        for key in keys:
            if key.digest in by_digest:
                raise BadKeys(
                    f"{by_digest[key.digest].name} and {key.name} have the same digest: remove one"
                )
            by_digest[key.digest] = key
        return by_digest
