"""Vendored libraries: their files are part of this repository."""

import re
from dataclasses import dataclass
from pathlib import Path

from deploy.supply.distributions import ROOT

FOLDER = ROOT / "service" / "static" / "vendor"


@dataclass(frozen=True)
class Vendored:
    """One library, as the first line of its file VERSION describes it."""

    name: str
    version: str
    address: str
    licence: str
    folder: Path


def vendored() -> list[Vendored]:
    """All libraries by folder name. Raises ValueError for one without a VERSION."""
    return [_read(folder) for folder in sorted(FOLDER.iterdir())]


def _read(folder: Path) -> Vendored:
    said = (folder / "VERSION").read_text()
    match = re.match(r"(\S+) (\S+), (https://\S+), (\S+)", said)
    if match is None:
        raise ValueError(f"{folder}/VERSION must say: NAME VERSION, ADDRESS, LICENCE")
    return Vendored(*match.groups(), folder)
