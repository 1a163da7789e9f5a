"""What `make docs` adds: pages that stand elsewhere, the API, and links between documents."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from mkdocs.structure.files import File, Files

from dualstream.service.server.app import create_app
from dualstream.service.settings import Settings

ROOT = Path(__file__).parent.parent
_FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_NAMED = re.compile(r"(?<![\w/(\[`])((?:docs/|load_tests/)?([A-Z_]+)\.md)(?![\w)\]#])")
# Pages of the site that stand outside of docs/: by the name of the page, where.
ELSEWHERE = {
    "index.md": "README.md",
    "SECURITY.md": "SECURITY.md",
    "DESIGN.md": "DESIGN.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "RESULTS.md": "load_tests/RESULTS.md",
    "RELIABILITY.md": "load_tests/RELIABILITY.md",
}


def on_files(files: Files, config: Any) -> Files:
    for page, place in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / place).read_text()))
    for plot in (ROOT / "load_tests" / "plots").glob("*.png"):
        files.append(File.generated(config, f"plots/{plot.name}", abs_src_path=str(plot)))
    files.append(File.generated(config, "API.md", content=api_page()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """A document that is named in running text is a link to it."""

    def linked(found: re.Match[str]) -> str:
        name = "index.md" if found.group(2) == "README" else f"{found.group(2)}.md"
        is_page = name != page.file.src_uri and files.get_file_from_path(name) is not None
        return f"[{found.group(2)}.md]({name})" if is_page else found.group()

    parts = _FENCED.split(markdown)
    return "".join(
        part if place % 2 else _NAMED.sub(linked, part) for place, part in enumerate(parts)
    )


def api_page() -> str:
    """Every route with its parameters, its body's kinds and its answers."""
    told = _openapi()
    lines = [
        "# The API",
        "",
        "Made from the server's own OpenAPI document; `/docs` of a running server has it with "
        "examples to try, `/openapi.json` has all types. Every refusal is told of in ERRORS.md.",
    ]
    for path, methods in told["paths"].items():
        for method, route in methods.items():
            lines += ["", f"## {method.upper()} {path}", "", *_route(route)]
    return "\n".join(lines) + "\n"


def _openapi() -> dict[str, Any]:
    """What `/openapi.json` answers; the server is not started, and no store is opened."""

    async def asked() -> dict[str, Any]:
        app = httpx.ASGITransport(app=create_app(Settings(store="sqlite:///unused.db")))
        async with httpx.AsyncClient(transport=app, base_url="http://localhost") as client:
            told: dict[str, Any] = (await client.get("/openapi.json")).raise_for_status().json()
            return told

    return asyncio.run(asked())


def _route(route: dict[str, Any]) -> Iterator[str]:
    yield route.get("description") or route.get("summary", "")
    parameters = route.get("parameters", [])
    if parameters:
        yield from ("", "| parameter | in | is |", "|---|---|---|")
    for parameter in parameters:
        must = ", needed" if parameter.get("required") else ""
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
