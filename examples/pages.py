"""Run all examples; write their output and their pictures into the documentation.

python -m examples.pages [NAME ...]
"""

import io
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from rich.console import Console

from examples.common import Result

NAMES = (
    "clicks",
    "card_fraud",
    "tickets",
    "maintenance",
    "demand",
    "bids",
    "churn",
    "moderation",
    "delivery",
    "house_power",
)
DOCS = Path(__file__).parent.parent / "docs"
PAGES = {name: DOCS / "examples" / f"{name.replace('_', '-')}.md" for name in NAMES}
PICTURES = {name: DOCS / "images" / "examples" / f"{name}.svg" for name in NAMES}
_OUTPUT = re.compile(
    r"(<!-- output of the example -->\n```text\n).*?(^```$)", re.DOTALL | re.MULTILINE
)
_OVERVIEW = DOCS / "start" / "examples.md"
_SERVER = re.compile(r"^server: .*\n", re.MULTILINE)


def write(name: str) -> str:
    """Run an example on generated rows; returns what it has printed."""
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    example = import_module(f"examples.{name}")
    result = example.main(["--picture", str(PICTURES[name])], console)
    text = _SERVER.sub("", printed.getvalue())
    page = PAGES[name].read_text()
    PAGES[name].write_text(_OUTPUT.sub(lambda block: f"{block[1]}{text}{block[2]}", page))
    rows = re.compile(rf"(^\| \[[^]]+\]\(\S*/{PAGES[name].name}\) \|.*\| )[^|]* \|$", re.MULTILINE)
    _OVERVIEW.write_text(rows.sub(rf"\g<1>{_figures(result)} |", _OVERVIEW.read_text()))
    return text


def _figures(result: Result) -> str:
    """The cell of an example in the table of all."""
    best = result.best_baseline
    [name] = [name for name, value in result.baselines.items() if value == best]
    return f"{result.measure}: **{result.model:.3g}**; {name} {best:.3g}"


def main(arguments: Sequence[str]) -> None:
    console = Console()
    for name in arguments or NAMES:
        console.rule(name)
        console.print(write(name), highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main(sys.argv[1:])
