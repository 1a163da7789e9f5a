"""Write docs/reference/licences.md: python -m deploy.supply.licences"""

from deploy.supply.distributions import ROOT, licence, pins, reached, requirements
from deploy.supply.vendored import vendored

PAGE = ROOT / "docs/reference/licences.md"

HEAD = """# Licences

Dualstream is under the Apache License 2.0 (LICENSE). `python -m deploy.supply.licences` writes this
page from the metadata of each distribution; a test compares it with what is installed.

## What the server needs

| distribution | version | licence |
|---|---|---|
"""
VENDORED = """
## Vendored files

Under `service/static/vendor`, each with its licence.

| library | version | licence | from |
|---|---|---|---|
"""


def page() -> str:
    """Text of the page. Raises LookupError for a distribution that is not installed."""
    versions = pins()
    lines = []
    for name, distribution in sorted(reached(requirements("server")).items()):
        if distribution is None:
            raise LookupError(f"{name} is not installed")
        lines.append(f"| {name} | {versions[name]} | {licence(distribution)} |\n")
    others = [
        f"| {one.name} | {one.version} | {one.licence} | {one.address} |\n" for one in vendored()
    ]
    return HEAD + "".join(lines) + VENDORED + "".join(others)


if __name__ == "__main__":
    PAGE.write_text(page())
