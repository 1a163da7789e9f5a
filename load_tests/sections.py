"""Sections of RESULTS.md: a benchmark that runs alone replaces its own."""

import re
from collections.abc import Iterator, Sequence

MOST_MORE = 1.1
"""Of the CPU against the peer's in the run before: what is more is reported."""
ROW = re.compile(r"^\| (.+?) \| .* us \(([\d.]+)x\) \|", re.MULTILINE)


def with_section(document: str, title: str, lines: Sequence[str]) -> str:
    """The document with this section in place of the old one, or else at the end."""
    before, separator, rest = document.partition(f"\n## {title}\n")
    _, heading, after = rest.partition("\n## ") if separator else ("", "", "")
    text = "\n".join(["", f"## {title}", "", *lines, ""])
    return before.rstrip("\n") + "\n" + text + heading + after


def with_head(document: str, lines: Sequence[str]) -> str:
    """The document with these lines between its title and its first section."""
    title = document.partition("\n")[0]
    sections = document.find("\n## ")
    rest = document[sections:] if sections >= 0 else ""
    return "\n".join([title, "", *lines, ""]) + rest


def section(document: str, title: str) -> str:
    """The lines of a section; without a title, those before the first one."""
    if not title:
        return document.partition("\n## ")[0]
    return document.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def more_cpu(before: str, rows: Sequence[str]) -> Iterator[str]:
    """A line for each table row that takes more CPU against its peer than before."""
    ratios = dict(ROW.findall(before))
    for what, ratio in ROW.findall("\n".join(rows)):
        if what in ratios and float(ratio) > MOST_MORE * float(ratios[what]):
            yield f"MORE CPU: {what}: {ratio}x of the peer's, {ratios[what]}x before"
