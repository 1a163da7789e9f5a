"""Write the server's software bill of materials: python -m deploy.supply.sbom PYTHON FILE

PYTHON is the interpreter of an environment with the server and nothing else. The format is
CycloneDX 1.6 JSON, validated against its schema, and includes vendored libraries. The same input
gives the same bytes.
"""

import json
import subprocess
import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from deploy.supply.distributions import ROOT
from deploy.supply.vendored import vendored


def bill(python: str) -> str:
    """Text of the bill. Raises ValueError if it violates the schema."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", python]
    command += ["--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "application"]
    command += ["--output-reproducible", "--spec-version", "1.6"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)  # noqa: S603
    document = json.loads(done.stdout)
    for one in vendored():
        reference = f"pkg:npm/{one.name}@{one.version}"
        document["components"].append(
            {
                "type": "library",
                "bom-ref": reference,
                "name": one.name,
                "version": one.version,
                "purl": reference,
                "licenses": [{"license": {"id": one.licence}}],
                "externalReferences": [{"type": "vcs", "url": one.address}],
            }
        )
        document["dependencies"].append({"ref": reference})
    text = json.dumps(document, indent=2) + "\n"
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong is not None:
        raise ValueError(f"not CycloneDX 1.6: {wrong}")
    return text


if __name__ == "__main__":
    python, path = sys.argv[1:]
    Path(path).write_text(bill(python))
