"""Alert rules and docs/reference/metrics.md against promtool, Prometheus, a server."""

import random
import re
from collections.abc import Iterator

import httpx
import pytest
import yaml
from starlette.testclient import TestClient

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.server.app import create_app
from dualstream.service.settings import Settings
from tests.monitoring import DEPLOY, MEMBERS, METRICS, ROOT, SCRAPE_S, SPARSE, documented, hurried
from tests.prometheus import promtool, running_prometheus, tool
from tests.redis_server import redis_or_skip
from tests.support import until


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Text of /metrics of a server with a model of every kind."""
    store = f"sqlite:///{tmp_path_factory.mktemp('exposed') / 'test.db'}"
    settings = Settings(store=store, metrics_segments=True)
    with TestClient(create_app(settings)) as client:
        until(lambda: client.get("/readyz").status_code == 200, 60)
        yield exposition(client)


def exposition(client: TestClient) -> str:
    specs = {
        "pair": {"algorithm": "portfolio", "members": MEMBERS, "features": SPARSE},
        "single": {"features": SPARSE, "algorithm": "dual_ascent"},
        "regression": {"features": SPARSE, "algorithm": "dual_ascent", "task": "regression"},
        "guarded": {"features": SPARSE, "algorithm": "dual_ascent", "guard": "warn"},
    }
    for model, spec in specs.items():
        assert client.put(f"/models/{model}", json=spec).status_code == 201, spec
        body = {"samples": [{"x": {"1": k + 1}, "y": k % 2} for k in range(20)]}
        client.post(f"/models/{model}/learn", json=body)
        client.get(f"/models/{model}/predict?x=1:1")
        client.get(f"/models/{model}/certificate?reference=true")
    columns = {"columns": {"types": {"site": "category"}}, "segments": ["site"]}
    columns |= {"intervals": {"coverage": 0.9}, "alert_rate": 0.1}
    assert client.put("/models/segmented", json=columns).status_code == 201
    client.post("/models/segmented/learn", json=[{"site": "a", "y": 1}])
    assert client.get("/metrics").status_code == 200  # some metrics are measured in the background
    client.portal.call(client.app._registry.counters.store.measure)
    return client.get("/metrics").text


def test_what_a_model_takes_in_the_store_is_shown(exposed):
    for name in ("journal_bytes", "journal_age_seconds", "unsaved_age_seconds"):
        result = re.search(rf'^dualstream_{name}{{model="pair"}} (\S+)$', exposed, re.M)
        assert result is not None and 0 < float(result[1]) < 1e6
    assert 'dualstream_snapshots_bytes{model="pair"} 0.0\n' in exposed


def kinds_of(exposition: str) -> dict[str, str]:
    return dict(re.findall(r"^# TYPE (\S+) (\S+)$", exposition, re.M))


def test_every_family_is_documented_and_every_documented_one_exists(exposed):
    kinds = kinds_of(exposed)
    assert documented() == kinds


def test_every_label_is_documented(exposed):
    for line in exposed.splitlines():
        result = re.match(r"(dualstream_\w+)\{(.*)\}", line)
        if result is None:
            continue
        name = re.sub(r"_(bucket|sum|count)$", "", result[1])
        row = re.search(rf"^\| `(?:{name}|{result[1]})`([^|]*)\|", METRICS, re.M)
        assert row is not None, line
        for label in set(re.findall(r'(\w+)="', result[2])) - {"le"}:
            assert f"`{label}`" in row[1], (name, label)


def test_names_are_as_prometheus_has_them(exposed):
    assert promtool("check", "metrics", given=exposed).strip() == ""


def test_configuration_and_rules_are_valid_and_fire_when_they_should():
    promtool("check", "config", str(DEPLOY / "prometheus.yml"))
    promtool("test", "rules", str(ROOT / "tests" / "alerts_test.yml"))


def alerts() -> list[dict]:
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_alert_is_explained_and_tested_and_reads_what_exists():
    tested = (ROOT / "tests" / "alerts_test.yml").read_text()
    page = (ROOT / "docs/operate/alerts.md").read_text()
    for rule in alerts():
        name = rule["alert"]
        assert rule["annotations"]["runbook_url"] == f"docs/operate/alerts.md#{name.lower()}"
        assert f"\n## {name}\n" in page
        assert re.search(rf"exp_alerts:\n.*\n.*\n.*\n +runbook_url: \S+#{name.lower()}\n", tested)
    assert len(re.findall(r"^## ", page, re.M)) == len(alerts())


CONSUMER = re.findall(r"^\| `(\w+)`", (ROOT / "docs/guides/kafka.md").read_text(), re.M)


def test_alerts_read_families_that_exist():
    previous = {*documented(), *CONSUMER}
    for expression in (rule["expr"] for rule in alerts()):
        for name in re.findall(r"dualstream_\w+", expression):
            assert name in previous or re.sub(r"_(bucket|sum|count)$", "", name) in previous, name


def as_composed(service: str) -> dict[str, str]:
    """Redis options of the compose file."""
    composed = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    command = composed[service]["command"][1:]
    return {name[2:]: value for name, value in zip(command[::2], command[1::2], strict=True)}


def test_alerts_fire_in_a_prometheus_that_scrapes_a_server(tmp_path):
    """On the compose file's Redis, which is killed, and then the server."""
    tool("prometheus")
    composed = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    durability = composed["server"]["environment"]["DUALSTREAM_DURABILITY"]
    chance = random.Random(5)

    def rows(count: int, is_chance: bool) -> dict:
        samples = []
        for _ in range(count):
            x = [chance.gauss(0, 1) for _ in range(8)]
            is_positive = chance.random() < 0.7 if is_chance else x[0] > 0
            samples.append({"x": x, "y": int(is_positive)})
        return {"samples": samples}

    with (
        redis_or_skip(**as_composed("redis")) as redis,
        ServerProcess(redis.url, ["--durability", durability]) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
        running_prometheus(hurried(tmp_path, server.url[7:]), tmp_path) as prometheus,
    ):
        for model, algorithm in (("loses", "perceptron"), ("wins", "dual_ascent")):
            client.put(f"/models/{model}", json={"algorithm": algorithm, "features": SPARSE})
            client.post(f"/models/{model}/learn", json=rows(1000, model == "loses"))
        learned = 'dualstream_samples_total{outcome="learned"} >= 1000'
        until(lambda: len(prometheus.query(learned)) == 2, 60, SCRAPE_S)
        down = {("DualstreamStoreAway", ""), ("DualstreamDown", "")}

        def is_up() -> bool:
            """A server without a core for a second is down for that time."""
            return not prometheus.firing() & down

        until(is_up, 60, SCRAPE_S)
        for model in ("loses", "wins"):
            client.post(f"/models/{model}/learn", json=rows(100, model == "loses"))
        expected = {("DualstreamLosingToBaseline", "loses")}
        expected |= {("DualstreamNoSamples", model) for model in ("loses", "wins")}
        until(lambda: expected <= prometheus.firing(), 60, SCRAPE_S)
        assert ("DualstreamLosingToBaseline", "wins") not in prometheus.firing()
        until(is_up, 60, SCRAPE_S)
        redis.kill()
        until(lambda: ("DualstreamStoreAway", "") in prometheus.firing(), 60, SCRAPE_S)
        server.kill()
        until(lambda: ("DualstreamDown", "") in prometheus.firing(), 60, SCRAPE_S)
