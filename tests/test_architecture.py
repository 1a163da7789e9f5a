"""The layers import one way: api -> committer -> replica -> {journal -> record, solvers}."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Each room and what it must never import; the journal's kernels are made as all kernels are, and
# its ones are those that all rows share.
FORBIDDEN = {
    "solvers": ("service", "fastapi", "redis", "pydantic", "msgspec"),
    "service/journal": (
        "dualstream.service.api",
        "dualstream.service.replica.committer",
        "dualstream.service.replica.replica",
        "solvers",
    ),
    "service/replica/replica.py": (
        "dualstream.service.api",
        "dualstream.service.replica.committer",
        "dualstream.service.models.registry",
    ),
    "service/replica/entries.py": (
        "dualstream.service.api",
        "dualstream.service.replica.committer",
        "dualstream.service.models.registry",
    ),
    "service/replica/apply_control.py": (
        "dualstream.service.api",
        "dualstream.service.replica.committer",
        "dualstream.service.models.registry",
    ),
    "service/replica/committer.py": (
        "dualstream.service.api",
        "dualstream.service.models.registry",
    ),
    "service/replica/groups.py": (
        "dualstream.service.api",
        "dualstream.service.models.registry",
        "dualstream.service.replica.committer",
    ),
    "service/replica/apply.py": (
        "dualstream.service.api",
        "dualstream.service.models.registry",
        "dualstream.service.replica.committer",
    ),
    "service/replica/groups.py": (
        "dualstream.service.api",
        "dualstream.service.models.registry",
        "dualstream.service.replica.committer",
        "dualstream.service.replica.replica",
    ),
    "service/client": (
        "dualstream.service.api",
        "dualstream.service.codecs",
        "dualstream.service.journal",
        "solvers",
        "numpy",
    ),
    "service/cuts": (
        "dualstream.service.api",
        "dualstream.service.codecs",
        "dualstream.service.journal",
        "solvers",
        "numpy",
    ),
    "service/replica/requests.py": (
        "dualstream.service.api",
        "dualstream.service.models.registry",
        "dualstream.service.replica.committer",
    ),
    "service/replica/receipts.py": (
        "dualstream.service.api",
        "dualstream.service.models.registry",
        "dualstream.service.replica.committer",
    ),
}
ALLOWED = {"service/journal": ("dualstream.solvers.jit", "dualstream.solvers.core.ones")}


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
