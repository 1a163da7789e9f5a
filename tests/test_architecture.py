"""The layers import one way: api -> committer -> replica -> {journal -> record, solvers}."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Each room and what it must never import; the journal's kernels are made as all kernels are, and
# its ones are those that all rows share.
FORBIDDEN = {
    "solvers": ("service", "fastapi", "redis", "pydantic", "msgspec"),
    "service/journal": ("service.api", "service.committer", "service.replica", "solvers"),
    "service/replica.py": ("service.api", "service.committer", "service.catalog"),
    "service/entries.py": ("service.api", "service.committer", "service.catalog"),
    "service/obeying.py": ("service.api", "service.committer", "service.catalog"),
    "service/committer.py": ("service.api", "service.catalog"),
    "service/appending.py": ("service.api", "service.catalog", "service.committer"),
    "service/applying.py": ("service.api", "service.catalog", "service.committer"),
    "service/groups.py": ("service.api", "service.catalog", "service.committer", "service.replica"),
    "service/client": ("service.api", "service.codecs", "service.journal", "solvers", "numpy"),
    "service/cuts": ("service.api", "service.codecs", "service.journal", "solvers", "numpy"),
    "service/requests.py": ("service.api", "service.catalog", "service.committer"),
    "service/receipts.py": ("service.api", "service.catalog", "service.committer"),
}
ALLOWED = {"service/journal": ("solvers._jit", "solvers.ones")}


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def python_files(room: str) -> list[Path]:
    place = ROOT / room
    return [place] if place.suffix == ".py" else sorted(place.rglob("*.py"))


def is_allowed(room: str, module: str) -> bool:
    return any((module + ".").startswith(name + ".") for name in ALLOWED.get(room, ()))


def test_no_layer_imports_a_layer_above_it():
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for room, forbidden in FORBIDDEN.items()
        for path in python_files(room)
        if path.exists()
        for module in imported_modules(path)
        if not is_allowed(room, module)
        and any(module == name or module.startswith(name + ".") for name in forbidden)
    ]
    assert wrong == []
