"""wire has what several packages share, and nothing that one of them could have for itself."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("client", "consume", "service", "solvers", "wire")


def test_each_module_is_used_by_two_packages():
    users = defaultdict[str, set[str]](set)
    for path in [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("dualstream.wire."):
                users[str(node.module).removeprefix("dualstream.")].add(module)

    def packages(module: str) -> set[str]:
        """Packages that import a module, also by another module of wire."""
        return {
            package
            for user in users[module]
            for package in (
                packages(user) if user.startswith("wire.") else [user.partition(".")[0]]
            )
        }

    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "wire").rglob("*.py")
        if path.name != "__init__.py"
    }
    assert {module: packages(module) for module in modules if len(packages(module)) < 2} == {}
    assert packages("wire.dask") == {"client", "solvers"}
