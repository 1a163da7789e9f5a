"""Manifests in deploy/kubernetes: valid, and of one piece with the server, image and rules."""

import json
import os
import re
from collections import Counter
from copy import deepcopy

import pytest
import yaml

from deploy.kubernetes.prometheus_rule import TARGET, manifest
from dualstream.service.http.body_memory import memory_limit
from dualstream.service.settings import Settings
from tests.kubernetes.rendered import (
    MANIFESTS,
    OVERLAYS,
    ROOT,
    container,
    environment,
    pod,
    render,
    rendered,
    resource,
    workload,
)
from tests.prometheus import promtool

PAGE = (ROOT / "docs" / "operate" / "kubernetes.md").read_text()
OF_OPERATOR = {"ServiceMonitor", "PrometheusRule"}
SERVER_BYTES = 280e6
"""Memory of a server without models: docs/operate/sizing.md."""
SNAPSHOT_S = 5
pytestmark = pytest.mark.parametrize("overlay", OVERLAYS)


def test_resources_are_valid(overlay):
    # Each test process imports this module, and this import takes 1.6 s.
    import kubernetes_validate

    kinds = Counter(one["kind"] for one in rendered(overlay))
    assert set(kinds.values()) == {1} and {"Service", "NetworkPolicy", *OF_OPERATOR} <= set(kinds)
    for one in rendered(overlay):
        assert one["metadata"]["name"] == "dualstream"
        if one["kind"] not in OF_OPERATOR:  # custom resources, whose schemas are not Kubernetes'
            kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)


def test_resources_find_each_other(overlay):
    labels = pod(overlay)["metadata"]["labels"]
    service, policy = resource(overlay, "Service"), resource(overlay, "NetworkPolicy")
    assert workload(overlay)["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert service["spec"]["selector"].items() <= labels.items()
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    [port] = container(overlay)["ports"]
    assert str(port["containerPort"]) == environment(overlay)["DUALSTREAM_PORT"]
    [served] = service["spec"]["ports"]
    assert served["targetPort"] == port["name"]
    assert policy["spec"]["ingress"][0]["ports"] == [{"port": port["name"], "protocol": "TCP"}]
    reached = {port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]}
    assert reached == {53, 4318} | ({6379} if overlay == "redis" else set())
    monitor = resource(overlay, "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert monitor["endpoints"][0]["port"] == served["name"]
    if overlay == "redis":
        target = resource(overlay, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
        assert target["kind"] == workload(overlay)["kind"]
        budget = resource(overlay, "PodDisruptionBudget")["spec"]
        assert budget["selector"]["matchLabels"].items() <= labels.items()
        assert "replicas" not in workload(overlay)["spec"]
    else:
        assert workload(overlay)["spec"]["replicas"] == 1
        assert workload(overlay)["spec"]["serviceName"] == service["metadata"]["name"]


def test_every_variable_is_a_setting_and_files_are_in_the_secret(overlay, monkeypatch, tmp_path):
    mounts = {one["mountPath"]: one["name"] for one in container(overlay)["volumeMounts"]}
    claims = [one["metadata"] for one in workload(overlay)["spec"].get("volumeClaimTemplates", [])]
    volumes = {one["name"]: one for one in [*pod(overlay)["spec"]["volumes"], *claims]}
    assert sorted(mounts.values()) == sorted(volumes)
    secret = volumes[mounts["/etc/dualstream"]]["secret"]["secretName"]
    monitor = resource(overlay, "ServiceMonitor")["spec"]["endpoints"][0]
    credentials = monitor["authorization"]["credentials"]
    used = {credentials["key"]}
    for name, value in environment(overlay).items():
        assert name.removeprefix("DUALSTREAM_").lower() in Settings.model_fields, name
        if value.startswith("/etc/dualstream/"):
            used.add(value.removeprefix("/etc/dualstream/"))
            value = str(tmp_path / "secret")
            (tmp_path / "secret").write_text("redis://here")
        monkeypatch.setenv(name, value)
    settings = Settings()
    store = settings.store.removeprefix("sqlite:///")
    assert settings.asks_for_keys and (overlay == "redis" or store.startswith("/data/"))
    # The page creates the secret.
    [created] = [
        line
        for line in PAGE.splitlines()
        if line.startswith(f"kubectl create secret generic {secret} ")
    ]
    assert secret == credentials["name"]
    assert used <= set(re.findall(r"--from-file=(\S+)", created))
    # Drain, running requests and snapshots fit before the kill.
    grace_s = pod(overlay)["spec"]["terminationGracePeriodSeconds"]
    assert grace_s >= settings.drain_s + settings.stop_timeout_s + SNAPSHOT_S
    memory = container(overlay)["resources"]["limits"]["memory"]
    bodies_bytes = memory_limit(settings.max_body_bytes)
    needed = settings.workers * (SERVER_BYTES + settings.models_bytes + bodies_bytes)
    assert needed <= int(memory.removesuffix("Gi")) * 2**30 <= 1.5 * needed


def test_the_pod_is_confined_and_of_the_images_user(overlay):
    user = re.search(r"useradd --system --uid (\d+)", (ROOT / "Dockerfile").read_text())[1]
    confined = pod(overlay)["spec"]["securityContext"]
    assert confined["runAsNonRoot"] and confined["runAsUser"] == confined["fsGroup"] == int(user)
    of_container = container(overlay)["securityContext"]
    assert of_container["readOnlyRootFilesystem"]
    assert not of_container["allowPrivilegeEscalation"]
    assert of_container["capabilities"] == {"drop": ["ALL"]}
    assert not pod(overlay)["spec"]["automountServiceAccountToken"]
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    assert container(overlay)["image"] == f"dualstream:{version}"


def test_the_kustomization_of_the_page_sets_namespace_and_image(overlay, tmp_path):
    [written] = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    path = os.path.relpath(MANIFESTS / overlay, tmp_path)
    changed = written.replace("deploy/kubernetes/redis", path)
    assert changed != written
    (tmp_path / "kustomization.yaml").write_text(changed)
    result = render(tmp_path)
    assert {one["metadata"]["namespace"] for one in result} == {"dualstream"}
    [pods] = [one["spec"]["template"] for one in result if "template" in one["spec"]]
    name, version = container(overlay)["image"].split(":")
    assert pods["spec"]["containers"][0]["image"] == f"registry.example/{name}:{version}"


def test_rules_are_those_of_the_file(overlay):
    assert TARGET.read_text() == manifest(), "run: python -m deploy.kubernetes.prometheus_rule"
    [inputs] = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())["groups"]
    [group] = deepcopy(resource(overlay, "PrometheusRule")["spec"]["groups"])
    for rule in (*inputs["rules"], *group["rules"]):
        rule["expr"] = " ".join(rule["expr"].split())  # kubectl breaks long lines elsewhere
    assert group == inputs


QUANTILE_TEST = """
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'S{pod="a", route="predict", status="200", le="0.1"}', values: "0+99x9"}
      - {series: 'S{pod="a", route="predict", status="200", le="+Inf"}', values: "0+100x9"}
      - {series: 'S{pod="a", route="learn", status="200", le="+Inf"}', values: "0+900x9"}
      - {series: 'S{pod="idle", route="/v2/m/infer", status="200", le="0.1"}', values: "7x9"}
      - {series: 'S{pod="idle", route="/v2/m/infer", status="200", le="+Inf"}', values: "7x9"}
    promql_expr_test:
      - expr: QUERY
        eval_time: 9m
        exp_samples:
          - {labels: '{pod="a"}', value: 0.1}
          - {labels: '{pod="idle"}', value: 0}
"""


def test_the_autoscaler_reads_a_metric_of_the_adapter(overlay, tmp_path):
    adapter = yaml.safe_load((MANIFESTS / "redis" / "prometheus-adapter.yaml").read_text())
    [rule] = adapter["rules"]["custom"]
    [metric] = resource("redis", "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    series = "dualstream_request_duration_seconds_bucket"
    query = rule["metricsQuery"].replace("<<.Series>>", series).replace("<<.GroupBy>>", "pod")
    query = query.replace("<<.LabelMatchers>>", 'pod=~"a|idle"')
    assert rule["seriesQuery"].startswith(f"{series}{{") and "<<" not in query
    test = QUANTILE_TEST.replace("S{", f"{series}{{").replace("QUERY", json.dumps(query))
    (tmp_path / "test.yml").write_text(test)
    promtool("test", "rules", str(tmp_path / "test.yml"))
