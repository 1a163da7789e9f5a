"""The Lua scripts, read once; `entries.lua` stands in front of each and explains the keys."""

from hashlib import sha1
from importlib.resources import files


class Script:
    """A script's text, and the digest under which Redis keeps it."""

    def __init__(self, name: str) -> None:
        folder = files(__package__)
        parts = ("entries.lua", f"{name}.lua")
        self.text = b"\n".join((folder / part).read_bytes() for part in parts)
        self.digest = sha1(self.text, usedforsecurity=False).hexdigest().encode()


APPEND = Script("append")
CURSOR = Script("cursor")
MODELS = Script("models")
READ = Script("read")
SNAPSHOTS = Script("snapshots")
TRIM = Script("trim")
