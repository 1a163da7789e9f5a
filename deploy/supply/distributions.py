"""Distributions that a set of requirements leads to, as installed here."""

import re
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
# Markers are evaluated for the image, so that the result is the same on every machine.
IMAGE = {"python_version": "3.11", "python_full_version": "3.11.14", "sys_platform": "linux"}


def requirements(extra: str | None = None) -> list[Requirement]:
    """Requirements of pyproject.toml: its dependencies, and those of an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = list(project["dependencies"])
    if extra is not None:
        texts += project["optional-dependencies"][extra]
    return [Requirement(text) for text in texts]


def extras() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"])


def pins() -> dict[str, str]:
    """Pinned version of each distribution in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().split()
    return {canonicalize_name(name): version for name, version in (x.split("==") for x in lines)}


def reached(wanted: Iterable[Requirement]) -> dict[str, metadata.Distribution | None]:
    """Transitive dependencies by canonical name; None for one that is not installed here."""
    distributions: dict[str, metadata.Distribution | None] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [(one, "") for one in wanted]
    while waiting:
        requirement, asker_extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate(IMAGE | {"extra": asker_extra}):
            continue
        name = canonicalize_name(requirement.name)
        try:
            distributions[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            distributions[name] = None
            continue
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += [
                    (Requirement(text), extra) for text in distributions[name].requires or ()
                ]
    # An extra that includes another one of this project requires the project itself.
    distributions.pop("dualstream", None)
    return distributions


def licence(distribution: metadata.Distribution) -> str:
    """Licence in the metadata: an SPDX expression, else classifiers, else a short text."""
    fields = distribution.metadata
    # Not by [...]: the package importlib_metadata, if it is imported, raises KeyError then.
    if expression := fields.get("License-Expression"):
        return str(expression)
    classifiers = [
        text.rpartition(" :: ")[2]
        for text in fields.get_all("Classifier", [])
        if text.startswith("License :: ") and text != "License :: OSI Approved"
    ]
    if classifiers:
        return ", ".join(classifiers)
    # Some packages put the whole licence text there; its first line is the name.
    return re.sub(r"\s+", " ", (fields.get("License") or "not said").strip().splitlines()[0])
