"""Resources of the Helm chart, rendered from the overlays: python -m deploy.kubernetes.chart

The chart has the overlays as files and changes them by its values, so both stay one description.
Needs kubectl in the folder of this interpreter, as the tests do.
"""

import subprocess
import sys
from pathlib import Path

KUBERNETES = Path(__file__).parent
CHART = KUBERNETES.parent / "helm"
OVERLAYS = ("sqlite", "redis")


def overlay(name: str) -> str:
    """The resources of an overlay as YAML."""
    kubectl = Path(sys.executable).parent / "kubectl"
    command = [str(kubectl), "kustomize", str(KUBERNETES / name)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603


def file_of(name: str) -> Path:
    return CHART / "files" / f"{name}.yaml"


if __name__ == "__main__":
    for name in OVERLAYS:
        file_of(name).write_text(overlay(name))
