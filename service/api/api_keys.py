"""API keys: who may do what on which models.

A key is 256 random bits; what is kept of it, in a file or in the environment, is a line with its
digest:

    NAME sha256:DIGEST SCOPE [PATTERN,PATTERN...] [requests=N] [rows=N]

with what it may send a second. Of a key with so many bits its plain sha256 is as good as a slow
hash: there is nothing to guess.
"""

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from fnmatch import translate
from pathlib import Path

log = logging.getLogger("dualstream.keys")

LOOK_S = 1.0
"""How often the file of keys is looked at."""
SECRET_BYTES = 32
PREFIX = "ds_"
"""So that programs which look for secrets in files and logs know one when they see it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_PATTERN = re.compile(r"[A-Za-z0-9._?*-]{1,128}")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


_RATE = re.compile(r"(requests|rows)=(\d{1,9}|any)")
ANY = 0
"""A rate of a key that has none, though others have."""


class BadKeys(ValueError):
    """Keys that cannot be read; the message names the place, and nothing that stands there."""


class KeyScope(IntEnum):
    """What a key may do; each scope has all below it.

    To learn answers scores of its rows, so that a key for it could predict anyhow.
    """

    NOTHING = 0
    """What needs no key; no key has this scope."""
    PREDICT = 1
    LEARN = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        """As it is written in lines, flags and answers."""
        return self.name.lower()


SCOPES = {scope.word: scope for scope in KeyScope if scope}


@dataclass(frozen=True)
class Key:
    """What is known of a key: never the key."""

    name: str
    digest: bytes = field(repr=False)
    scope: KeyScope
    patterns: tuple[str, ...] = ()
    """Of the models that it may see: `*` is any text, `?` any character; none of them is all."""
    requests: int | None = None
    rows: int | None = None
    """What it may send a second; None: as much as the settings say."""
    _match: re.Pattern[str] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        joined = "|".join(map(translate, self.patterns))
        object.__setattr__(self, "_match", re.compile(joined) if joined else None)

    @property
    def sees_all(self) -> bool:
        return self._match is None

    def may_see(self, model_id: str) -> bool:
        """Whether a model of this id, be there one or not, is within its patterns."""
        return self._match is None or self._match.fullmatch(model_id) is not None

    def line(self) -> str:
        """As it stands in the file of keys."""
        words = [self.name, f"sha256:{self.digest.hex()}", self.scope.word]
        words += [",".join(self.patterns)] if self.patterns else []
        rates = (("requests", self.requests), ("rows", self.rows))
        words += [f"{unit}={rate or 'any'}" for unit, rate in rates if rate is not None]
        return " ".join(words)


def digest_of(secret: bytes) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(secret).digest()


def new_key(
    name: str,
    scope: str,
    patterns: Sequence[str] = (),
    requests: int | None = None,
    rows: int | None = None,
) -> tuple[str, Key]:
    """A key that nobody has, and what is to be kept of it. Raises BadKeys."""
    random = secrets.token_bytes(SECRET_BYTES)
    secret = PREFIX + urlsafe_b64encode(random).decode().rstrip("=")
    key = _key_of("a new key", name, digest_of(secret.encode()), scope, patterns)
    return secret, replace(key, requests=requests, rows=rows)


def parse_keys(text: str, place: str) -> list[Key]:
    """The keys of lines that stand at `place`; also of one line with `;`. Raises BadKeys."""
    found = []
    for number, line in enumerate(text.replace(";", "\n").splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        at = f"{place}, line {number}"
        rates: dict[str, int] = {}
        while len(words) > 3 and (of_rate := _RATE.fullmatch(words[-1])):
            rates[of_rate[1]] = ANY if of_rate[2] == "any" else int(of_rate[2])
            if of_rate[2].strip("0") == "":
                raise BadKeys(f"{at}: a rate is a number from 1 on, or any")
            words.pop()
        if len(words) not in (3, 4):
            how = "NAME sha256:DIGEST SCOPE [PATTERN,PATTERN...] [requests=N] [rows=N]"
            raise BadKeys(f"{at}: a key is {how}")
        name, digest, scope, *models = words
        # What stands there in the digest's place may be a key: it is not told.
        of = _DIGEST.fullmatch(digest)
        if of is None:
            raise BadKeys(f"{at}: the digest is sha256: and 64 hexadecimal digits")
        patterns = models[0].split(",") if models else ()
        key = _key_of(at, name, bytes.fromhex(of[1]), scope, patterns)
        requests, rows = rates.get("requests"), rates.get("rows")
        found.append(replace(key, requests=requests, rows=rows))
    return found


def _key_of(at: str, name: str, digest: bytes, scope: str, patterns: Sequence[str]) -> Key:
    if not _NAME.fullmatch(name):
        raise BadKeys(f"{at}: a name has 1 to 64 characters of A-Z a-z 0-9 . _ @ -")
    if scope not in SCOPES:
        raise BadKeys(f"{at}: the scope is one of {', '.join(SCOPES)}")
    if not all(map(_PATTERN.fullmatch, patterns)):
        raise BadKeys(f"{at}: a pattern of models has A-Z a-z 0-9 . _ - and * or ?")
    return Key(name, digest, SCOPES[scope], tuple(patterns))


class KeyRing:
    """The keys that are valid now: those given, and those of a file, which is read again when it
    has changed.
    """

    def __init__(self, given: str | None, file: Path | None) -> None:
        """Raises BadKeys where there is none, or one that cannot be read."""
        self._file = file
        self._given = parse_keys(given or "", "DUALSTREAM_KEYS")
        self._seen = self._stamp()
        self._keys = self._indexed(self._read())
        if not self._keys:
            places = [] if given is None else ["DUALSTREAM_KEYS"]
            places += [] if file is None else [str(file)]
            raise BadKeys(f"there is no key in {' and '.join(places)}: nobody could use the server")

    def find(self, secret: bytes) -> Key | None:
        """The key that was shown, if it is one.

        Takes the same time for every wrong one: what is looked up is its digest, of which nobody
        can choose the beginning, in a table hashed with a seed of this process.
        """
        digest = digest_of(secret)
        key = self._keys.get(digest)
        if key is None or not hmac.compare_digest(key.digest, digest):
            return None
        return key

    async def watch(self) -> None:
        """Follow the file, for ever. Where it cannot be read the keys stay what they were."""
        while self._file is not None:
            await asyncio.sleep(LOOK_S)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Read the file again if it has changed."""
        seen = self._stamp()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._keys = self._indexed(self._read())
        except BadKeys as wrong:
            log.error("the keys stay as they were: %s", wrong)
        else:
            log.warning("the keys were read again: %d are valid", len(self._keys))

    def _stamp(self) -> tuple[int, int, int] | None:
        """Differs when the file does; taken before it is read, so that no change is missed."""
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def _read(self) -> list[Key]:
        if self._file is None:
            return self._given
        try:
            text = self._file.read_text()
        except OSError as wrong:
            raise BadKeys(f"{self._file}: {wrong.strerror}") from None
        except UnicodeDecodeError:
            raise BadKeys(f"{self._file}: it is no text in UTF-8") from None
        return [*self._given, *parse_keys(text, str(self._file))]

    @staticmethod
    def _indexed(keys: Iterable[Key]) -> dict[bytes, Key]:
        found: dict[bytes, Key] = {}
        for key in keys:
            if key.digest in found:
                raise BadKeys(f"{found[key.digest].name} and {key.name} are the same key")
            found[key.digest] = key
        return found
