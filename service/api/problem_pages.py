"""Pages of the error types: GET /problems/SLUG, to which the `type` of a problem leads.

The texts are those of `static/errors.md`, to which docs/reference/errors.md is a link.
"""

import html
import re
from functools import cache
from typing import NamedTuple

from fastapi import APIRouter, Response

from dualstream.service.api.dashboard import FOLDER, HEADERS
from dualstream.wire.problem_json import Problem, quoted

router = APIRouter(include_in_schema=False)

_ROW = re.compile(r"^\| `([a-z0-9-]+)` \| ([\w, ]+) \| (.+?) \| (.+) \|$", re.M)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"`([^`]*)`")
_PAGE = """<!doctype html>
<html lang="en">
  <head>
    <meta charset="utf-8" />
    <meta name="viewport" content="width=device-width, initial-scale=1" />
    <meta name="color-scheme" content="light dark" />
    <title>{title} · Dualstream</title>
    <link rel="icon" href="{root}static/icon.svg" type="image/svg+xml" />
    <link rel="stylesheet" href="{root}static/theme.css" />
  </head>
  <body>
    <header class="bar">
      <a class="brand" href="{root}"><img src="{root}static/icon.svg" alt="" width="24" height="24" /> Dualstream</a>
    </header>
    <main class="text">
{main}
    </main>
  </body>
</html>
"""  # noqa: E501


class ProblemType(NamedTuple):
    """Status codes, cause and remedy of one type of problem, in Markdown."""

    statuses: str
    cause: str
    remedy: str


@cache
def problem_types() -> dict[str, ProblemType]:
    """All types of problems by slug."""
    rows = _ROW.findall(_document())
    return {slug: ProblemType(*columns) for slug, *columns in rows}


@router.get("/problems")
async def problems() -> Response:
    """List of all types of problems."""
    lines = [
        f'<dt><a href="problems/{slug}">{slug}</a></dt>'
        f"<dd>{_html(one.cause)}. {_html(one.remedy)}.</dd>"
        for slug, one in problem_types().items()
    ]
    return _page("Errors", "./", ["<h1>Errors</h1>", "<dl>", *lines, "</dl>"])


@router.get("/problems/{slug}")
async def problem(slug: str) -> Response:
    """Cause of one type of problem, and what to do."""
    problem_type = problem_types().get(slug)
    if problem_type is None:
        raise Problem(404, "not-found", f"no problem type {quoted(slug)}; /problems lists all")
    lines = [
        f"<h1>{slug}</h1>",
        f"<p>Status {problem_type.statuses}: {_html(problem_type.cause)}.</p>",
        "<p>The field <code>detail</code> of the answer says what is wrong in this request,"
        " and <code>errors</code> where.</p>",
        f"<h2>What to do</h2><p>{_html(problem_type.remedy)}.</p>",
        '<p><a href="../problems">All errors</a></p>',
    ]
    return _page(slug, "../", lines)


def _document() -> str:
    return (FOLDER / "errors.md").read_text(encoding="utf-8")


def _html(markdown: str) -> str:
    """A line of Markdown as HTML. A link becomes its text: the server has no pages of the docs."""
    return _CODE.sub(r"<code>\1</code>", html.escape(_LINK.sub(r"\1", markdown)))


def _page(title: str, root: str, lines: list[str]) -> Response:
    main = "\n".join(f"      {line}" for line in lines)
    text = _PAGE.format(title=title, root=root, main=main)
    return Response(text, media_type="text/html", headers=HEADERS)
