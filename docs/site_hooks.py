"""MkDocs hooks: pages from outside docs/, the API reference, and links between both."""

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from mkdocs.structure.files import File, Files

from dualstream.service.server.app import create_app
from dualstream.service.settings import Settings

ROOT = Path(__file__).parent.parent
API = "reference/api.md"
# Pages of the site that are files outside docs/: page -> file.
ELSEWHERE = {
    "operate/security.md": "SECURITY.md",
    "operate/security-tests.md": "load_tests/SECURITY.md",
    "internals/design.md": "DESIGN.md",
    "internals/contributing.md": "CONTRIBUTING.md",
    "internals/changelog.md": "CHANGELOG.md",
    "internals/benchmarks.md": "load_tests/RESULTS.md",
    "internals/reliability.md": "load_tests/RELIABILITY.md",
}
_PAGES = {file: page for page, file in ELSEWHERE.items()}
_FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    for page, file in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / file).read_text()))
    for plot in (ROOT / "load_tests" / "plots").glob("*.png"):
        page = f"internals/plots/{plot.name}"
        files.append(File.generated(config, page, abs_src_path=str(plot)))
    files.append(File.generated(config, API, content=api_page()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links that are right in the repository become links of the site."""
    here = page.file.src_uri
    if here == API:
        return markdown
    file = ELSEWHERE.get(here, f"docs/{here}")

    def linked(found: re.Match[str]) -> str:
        text, target, anchor = found.group(1), found.group(2), found.group(3) or ""
        path = os.path.normpath(os.path.join(os.path.dirname(file), target))
        there = _PAGES.get(path, path.removeprefix("docs/"))
        if here in ELSEWHERE and path.startswith("load_tests/plots/"):
            there = f"internals/{path.removeprefix('load_tests/')}"
        if files.get_file_from_path(there) is None:
            return text
        return f"[{text}]({os.path.relpath(there, os.path.dirname(here) or '.')}{anchor})"

    parts = _FENCED.split(markdown)
    return "".join(part if k % 2 else _LINK.sub(linked, part) for k, part in enumerate(parts))


def api_page() -> str:
    """The API reference: parameters, media types and responses of every route."""
    document = _openapi()
    lines = [
        "# HTTP API",
        "",
        "Generated from the server's OpenAPI document. A running server shows it with examples at "
        "`/docs`, and all types at `/openapi.json`. [Errors](errors.md) lists every error type.",
    ]
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            lines += ["", f"## {method.upper()} {path}", "", *_route(route)]
    return "\n".join(lines) + "\n"


def _openapi() -> dict[str, Any]:
    """The body of `/openapi.json`; starts no server and opens no store."""

    async def fetch() -> dict[str, Any]:
        app = httpx.ASGITransport(app=create_app(Settings(store="sqlite:///unused.db")))
        async with httpx.AsyncClient(transport=app, base_url="http://localhost") as client:
            response = (await client.get("/openapi.json")).raise_for_status()
            document: dict[str, Any] = response.json()
            return document

    return asyncio.run(fetch())


def _route(route: dict[str, Any]) -> Iterator[str]:
    yield route.get("description") or route.get("summary", "")
    parameters = route.get("parameters", [])
    if parameters:
        yield from ("", "| parameter | in | description |", "|---|---|---|")
    for parameter in parameters:
        must = ", required" if parameter.get("required") else ""
        text = (parameter.get("description") or "").replace("|", "\\|").replace("\n", " ")
        yield f"| `{parameter['name']}` | {parameter['in']}{must} | {text} |"
    body = route.get("requestBody", {}).get("content", {})
    if body:
        yield from ("", "Body: " + ", ".join(f"`{media}`" for media in body))
    yield ""
    for status, answer in route.get("responses", {}).items():
        schemas = sorted(set(re.findall(r"schemas/(\w+)'", repr(answer.get("content", {})))))
        types = f" ({', '.join(f'`{name}`' for name in schemas)})" if schemas else ""
        text = answer.get("description", "").replace("\n", " ")
        yield f"- {status}: {text}{types}"
