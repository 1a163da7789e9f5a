"""The Kubernetes overlays, rendered by kubectl."""

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
MANIFESTS = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("sqlite", "redis")


@cache
def rendered(overlay: str) -> list[dict[str, Any]]:
    """The resources of an overlay."""
    return render(MANIFESTS / overlay)


def render(folder: Path) -> list[dict[str, Any]]:
    """The resources of a kustomization, as `kubectl apply -k` sends them."""
    kubectl = Path(sys.executable).parent / "kubectl"
    command = [str(kubectl), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def resource(overlay: str, kind: str) -> dict[str, Any]:
    """The only resource of a kind."""
    [result] = [one for one in rendered(overlay) if one["kind"] == kind]
    return result


def workload(overlay: str) -> dict[str, Any]:
    return resource(overlay, {"sqlite": "StatefulSet", "redis": "Deployment"}[overlay])


def pod(overlay: str) -> dict[str, Any]:
    return workload(overlay)["spec"]["template"]


def container(overlay: str) -> dict[str, Any]:
    [result] = pod(overlay)["spec"]["containers"]
    return result


def environment(overlay: str) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container(overlay)["env"]}
