"""The Helm chart, rendered by Helm: the resources of the overlays, changed by values."""

from copy import deepcopy
from functools import cache
from typing import Any

import pytest
import yaml

from tests.kubernetes.rendered import OVERLAYS, ROOT, rendered

CHART = ROOT / "deploy" / "helm"
OF_OPERATOR = ("PrometheusRule", "ServiceMonitor")


@cache
def chart() -> Any:
    # Each test process imports this module, and Helm is 85 MB.
    from helm_python import Chart

    return Chart.load(str(CHART))


def resources(**values: Any) -> list[dict[str, Any]]:
    """What Helm sends to the cluster, without its own order."""
    [text] = chart().render(values, name="any", namespace="any").values()
    return [one for one in yaml.safe_load_all(text) if one]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_without_values_the_resources_are_those_of_the_overlay(overlay):
    got = resources(store=overlay)
    assert got == rendered(overlay), "run: python -m deploy.kubernetes.chart"


def test_values_change_what_they_name_and_nothing_else():
    got = resources(
        store="redis",
        image={"repository": "registry.example/dualstream", "tag": "9"},
        env={"DUALSTREAM_DRAIN_S": 2.5, "DUALSTREAM_MODELS_BYTES": 4294967296},
        resources={"limits": {"memory": "6Gi"}},
        replicas={"max": 9},
        monitoring=False,
    )
    expected = [deepcopy(one) for one in rendered("redis") if one["kind"] not in OF_OPERATOR]
    [server] = [
        one["spec"]["template"]["spec"]["containers"][0]
        for one in expected
        if one["kind"] == "Deployment"
    ]
    server["image"] = "registry.example/dualstream:9"
    server["resources"] = {"limits": {"memory": "6Gi"}}
    server["env"] = [one for one in server["env"] if one["name"] != "DUALSTREAM_DRAIN_S"]
    server["env"].append({"name": "DUALSTREAM_DRAIN_S", "value": "2.5"})
    server["env"].append({"name": "DUALSTREAM_MODELS_BYTES", "value": "4294967296"})
    [autoscaler] = [one for one in expected if one["kind"] == "HorizontalPodAutoscaler"]
    autoscaler["spec"]["maxReplicas"] = 9
    assert got == expected
    of_sqlite = resources(storage="99Gi")
    [workload] = [one for one in of_sqlite if one["kind"] == "StatefulSet"]
    [claim] = workload["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"] == {"storage": "99Gi"}


def test_an_unknown_store_is_an_error_that_names_the_stores():
    from helm_python.errors import HelmRenderError

    with pytest.raises(HelmRenderError, match="store is postgres; choose sqlite or redis"):
        resources(store="postgres")
