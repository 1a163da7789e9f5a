"""docker-compose.yml and Dockerfile: every path, port and variable they name is followed."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from dualstream.service.settings import Settings

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, Any]:
    return compose["services"]


def instructions(name: str) -> list[str]:
    joined = DOCKERFILE.replace("\\\n", " ")
    return [line.split(None, 1)[1] for line in joined.splitlines() if line.startswith(f"{name} ")]


def copies() -> list[tuple[str, str]]:
    """Source and target of each COPY of one file."""
    return [
        (words[0], words[1]) for words in map(shlex.split, instructions("COPY")) if len(words) == 2
    ]


def test_every_variable_is_a_setting_and_its_value_valid(services, monkeypatch):
    inputs = services["server"]["environment"]
    for name, value in inputs.items():
        assert name.removeprefix("DUALSTREAM_").lower() in Settings.model_fields, name
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.allow_anonymous and settings.host == "0.0.0.0"


def test_store_and_durability_meet_the_redis_service(services):
    host, port = re.match(
        r"redis://(\w+):(\d+)/0", services["server"]["environment"]["DUALSTREAM_STORE"]
    ).groups()
    assert host in services and port == "6379"
    options = services[host]["command"]
    got = dict(zip(options[1::2], options[2::2], strict=True))
    assert got["--appendonly"] == "yes"
    assert got["--appendfsync"] == services["server"]["environment"]["DUALSTREAM_DURABILITY"]
    assert got["--maxmemory-policy"] == "noeviction"


def test_ports_are_published_on_loopback_only(services):
    for service in services.values():
        for published in service.get("ports", []):
            assert published.startswith("127.0.0.1:"), published


def test_published_port_is_the_one_the_server_binds(services):
    server = services["server"]
    inside = server["ports"][0].rsplit(":", 1)[1]
    assert inside == server["environment"]["DUALSTREAM_PORT"] == instructions("EXPOSE")[0]
    request = (ROOT / "deploy" / "healthcheck.py").read_text()
    assert re.search(r'"DUALSTREAM_PORT"\) or "(\d+)"', request).group(1) == inside


def test_the_health_check_is_the_copied_one_of_file_and_image(services):
    [copied] = [target for source, target in copies() if source == "deploy/healthcheck.py"]
    assert (ROOT / "deploy" / "healthcheck.py").stat().st_mode & 0o111
    got = instructions("HEALTHCHECK")[0]
    assert json.loads(got[got.index("[") :]) == [Path(copied).name]
    assert services["server"]["healthcheck"]["test"] == ["CMD", Path(copied).name]


def test_the_server_has_a_read_only_root_and_writes_where_it_may(services):
    server = services["server"]
    assert server["read_only"] and server["tmpfs"] == ["/tmp"]
    assert instructions("VOLUME") == ["/data"]


def test_prometheus_scrapes_the_server_where_it_is(services):
    mounts = services["prometheus"]["volumes"]
    source, target, mode = next(m for m in mounts if m.startswith("./")).split(":")
    assert mode == "ro" and f"--config.file={target}" in services["prometheus"]["command"]
    # Prometheus looks for the rules next to its configuration.
    config = yaml.safe_load((ROOT / source).read_text())
    for rules in config["rule_files"]:
        beside = f"{Path(source).parent}/{rules}:{Path(target).parent}/{rules}:ro"
        assert f"./{beside}" in mounts
    scrape = yaml.safe_load((ROOT / source).read_text())["scrape_configs"][0]
    host, port = scrape["static_configs"][0]["targets"][0].split(":")
    assert host in services
    assert port == services[host]["environment"]["DUALSTREAM_PORT"]
    assert scrape["metrics_path"] == "/metrics"


def test_grafana_is_given_its_dashboard_and_the_prometheus_beside_it(services):
    grafana = services["grafana"]
    assert grafana["profiles"] == ["grafana"]
    inside = dict(reversed(mount.removesuffix(":ro").split(":")) for mount in grafana["volumes"])
    for source in inside.values():
        assert (ROOT / source).is_file()
    fields = {Path(target).parent.name: ROOT / source for target, source in inside.items()}
    source = yaml.safe_load(fields["datasources"].read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    board = next(target for target in inside if target.endswith(".json"))
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == board
    path = ROOT / inside[board]
    provided = ROOT / "deploy" / "grafana" / "dashboards.yml"
    options = yaml.safe_load(provided.read_text())["providers"][0]["options"]
    assert options["path"] == str(Path(board).parent)
    variables = json.loads(path.read_text())["templating"]["list"]
    assert source["isDefault"] and source["type"] in [one["query"] for one in variables]


def test_every_named_volume_is_declared_and_used(compose):
    used = {
        mount.split(":")[0]
        for service in compose["services"].values()
        for mount in service.get("volumes", [])
        if not mount.startswith("./")
    }
    assert used == set(compose["volumes"])


def test_every_dependency_has_a_health_check(services):
    for service in services.values():
        for needed, condition in service.get("depends_on", {}).items():
            assert condition["condition"] == "service_healthy"
            assert "healthcheck" in services[needed]


def test_every_copied_path_exists_and_is_let_through_by_dockerignore():
    allowed = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    for arguments in instructions("COPY"):
        for source in shlex.split(arguments)[:-1]:
            assert (ROOT / source).exists(), source
            assert source in allowed, source


def test_image_has_the_labels_of_this_version():
    inputs = dict(re.findall(r'org\.opencontainers\.image\.([\w.]+)="?([^" ]+)', DOCKERFILE))
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]
    assert inputs["version"] == version and inputs["revision"] == "$REVISION"
    assert inputs["licenses"] == "Apache-2.0"
    base = f"{inputs['base.name']}@{inputs['base.digest']}"
    assert base == f"docker.io/library/{instructions('FROM')[0]}"
    assert re.fullmatch(r".*:3\.11\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", base)


def test_image_runs_as_a_user_that_the_build_makes():
    user = instructions("USER")[0]
    assert user != "root"
    assert any("useradd" in run and user in run for run in instructions("RUN"))


def test_entry_point_is_the_copied_script():
    source, target = shlex.split(instructions("COPY")[-1])
    assert Path(target).name == json.loads(instructions("ENTRYPOINT")[0])[0]
    assert (ROOT / source).stat().st_mode & 0o111
