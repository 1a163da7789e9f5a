"""Sections of RESULTS.md: a benchmark that runs alone replaces its own."""

from collections.abc import Sequence


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
