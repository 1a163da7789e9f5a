"""load_tests/SECURITY.md, in sections written by `make security` and `make fuzz`."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from load_tests.sections import with_section

PLACE = Path(__file__).parent / "SECURITY.md"
HEADING = """# Security test results

Each section is written by its run: `make security` (API description, hostile clients, static
analysis) and `make fuzz`. [Security](../SECURITY.md) says what is trusted.
"""


def record(title: str, lines: Sequence[str]) -> None:
    """Replace a section, with the date and the machine."""
    before = PLACE.read_text() if PLACE.exists() else HEADING
    cores, python = os.cpu_count(), platform.python_version()
    where = f"{datetime.now(UTC):%Y-%m-%d}, {cores} cores, Python {python}."
    partial = PLACE.with_suffix(".partial")
    partial.write_text(with_section(before, title, [*lines, "", where]))
    partial.rename(PLACE)
