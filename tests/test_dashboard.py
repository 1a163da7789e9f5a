"""The Grafana dashboard: its form, and each query on two real servers of one store."""

import itertools
import json
import math
import re
from pathlib import Path

import httpx

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.settings import Settings
from tests.monitoring import DEPLOY, MEMBERS, METRICS, SCRAPE_S, SPARSE, documented, hurried
from tests.prometheus import Prometheus, running_prometheus, tool
from tests.support import until

BOARD = json.loads((DEPLOY / "grafana" / "dualstream.json").read_text())
# Grafana's units that the dashboard uses.
UNITS = {"rowsps", "reqps", "percentunit", "short", "s", "bytes"}
OF_THE_STORE = {
    *("dualstream_journal_bytes", "dualstream_snapshots_bytes", "dualstream_journal_age_seconds"),
    *("dualstream_unsaved_age_seconds", "dualstream_remembered_rows"),
}


def expressions() -> list[str]:
    return [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]


def filled(expression: str, instance: str = ".*") -> str:
    """The expression for all models, over a few seconds."""
    for name, value in {"instance": instance, "model": ".*", "__rate_interval": "10s"}.items():
        expression = expression.replace(f"${name}", value)
    return expression


def families(expression: str) -> list[str]:
    result = re.findall(r"dualstream_\w+", expression)
    return [re.sub(r"_(bucket|sum|count)$", "", name) for name in result]


def shared_families() -> set[str]:
    """Families of the shared state or store, which every server of a store reports."""
    sections = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", METRICS, re.M | re.S)
    of_state = {"Models", "Members", "References and refits"}
    tables = "".join(text for title, text in sections if title in of_state)
    return OF_THE_STORE | set(re.findall(r"^\| `(dualstream_\w+)`", tables, re.M))


def test_the_dashboard_does_not_add_what_every_server_reports():
    shared = shared_families()
    assert {"dualstream_samples_total", "dualstream_nonzeros"} <= shared <= set(documented())
    for expression in expressions():
        for family in families(expression):
            assert family in documented(), family
            once = re.search(
                rf"max by \([\w, ]+\) \((?:sum by \(instance, model\) \()?"
                rf"(?:(?:rate|increase)\()?{family}\b",
                expression,
            )
            assert bool(once) == (family in shared or "lag" in family), expression


def test_panels_of_the_dashboard_are_whole_and_do_not_overlap():
    panels, covered = BOARD["panels"], set()
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["type"], panel["title"]) for panel in panels}) == len(panels)
    source = {"type": "prometheus", "uid": "${source}"}
    for panel in panels:
        position = panel["gridPos"]
        cells = {
            (position["x"] + right, position["y"] + down)
            for right in range(position["w"])
            for down in range(position["h"])
        }
        assert max(x for x, _ in cells) < 24 and not cells & covered, panel["title"]
        covered |= cells
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["type"] in ("stat", "timeseries") and panel["description"].endswith(".")
        assert defaults["unit"] in UNITS, panel["title"]
        steps = defaults.get("thresholds", {"steps": []})["steps"]
        values = [step["value"] for step in steps]
        assert bool(steps) or panel["type"] == "timeseries", panel["title"]
        assert values[:1] in ([], [None]) and values[1:] == sorted(values[1:])
        references = [target["refId"] for target in panel["targets"]]
        assert references == list("ABCD"[: len(references)]), panel["title"]
        for target in panel["targets"]:
            assert set(target) == {"refId", "expr", "legendFormat", "datasource"}
            assert target["datasource"] == panel["datasource"] == source
            # A name in the legend must be a label of the expression's result.
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                kept = re.search(r"\b(?:sum|max|min) by \(([^)]*)\)", target["expr"])
                assert kept is None or label in kept[1].split(", "), target["expr"]
    # The row of single numbers is the top of the page.
    assert {p["gridPos"]["y"] for p in panels if p["type"] == "stat"} == {0}


def test_every_selector_uses_the_variables():
    variables = {one["name"]: one for one in BOARD["templating"]["list"]}
    assert list(variables) == ["source", "instance", "model"]
    assert variables["source"]["type"] == "datasource"
    for expression in expressions():
        for name, selector in re.findall(r"(\w*)\{([^}]*)\}", expression):
            assert 'instance=~"$instance"' in selector, expression
            if name in shared_families():
                assert 'model=~"$model"' in selector, expression


def learn_until_all_have_data(clients: list[httpx.Client], prometheus: Prometheus) -> int:
    """Rows that were learned: predicted, labelled late and refused ones, by both servers."""
    pair = {"algorithm": "portfolio", "members": MEMBERS, "features": SPARSE}
    clients[0].put("/models/pair", json=pair).raise_for_status()
    numbers = {"algorithm": "dual_ascent", "task": "regression", "features": SPARSE}
    numbers["guard"] = "pause"
    clients[1].put("/models/numbers", json=numbers).raise_for_status()
    clients[0].post("/models/numbers/learn", json={"x": {"1": 1}, "y": 3}).raise_for_status()
    waiting, names, rows = expressions(), itertools.count(), 1

    def all_have_data() -> bool:
        nonlocal rows
        for client in clients:
            name = f"late-{next(names)}"
            body = {"samples": [{"x": {"1": 1}, "y": 1}, {"x": {"99": 1}, "y": 1}]}
            assert client.post("/models/pair/learn", json=body).json()["rejected"] == 1
            later = {"samples": [{"x": {"1": 1}, "id": name}]}
            client.post("/models/pair/predict?remember=true", json=later).raise_for_status()
            label = {"labels": [{"id": name, "y": 1}]}
            client.post("/models/pair/labels", json=label).raise_for_status()
            rows += 2
        waiting[:] = [each for each in waiting if not has_number(prometheus.query(filled(each)))]
        return not waiting

    until(all_have_data, 120, SCRAPE_S)
    return rows


def has_number(result: list[dict]) -> bool:
    return any(math.isfinite(float(one["value"][1])) for one in result)


def series(result: list[dict]) -> dict[str, float]:
    return {json.dumps(one["metric"], sort_keys=True): float(one["value"][1]) for one in result}


def test_every_panel_has_data_of_two_servers_and_counts_a_row_once(tmp_path: Path):
    tool("prometheus")
    store = f"sqlite:///{tmp_path / 'both.db'}"
    with (
        ServerProcess(store) as one,
        ServerProcess(store) as two,
        httpx.Client(base_url=one.url, timeout=60) as first,
        httpx.Client(base_url=two.url, timeout=60) as second,
    ):
        targets = [server.url.removeprefix("http://") for server in (one, two)]
        with running_prometheus(hurried(tmp_path, *targets), tmp_path) as prometheus:
            rows = learn_until_all_have_data([first, second], prometheus)
            shown = {p["title"]: p["targets"] for p in BOARD["panels"]}
            # What each server counts itself is added, and what both report is not.
            truth = {("Rows learned", 0): rows, ("Servers", 0): 2, ("Store", 0): 1}
            truth |= {("Models and workers", 0): 2, ("Models and workers", 2): 2}
            truth |= {("Memory of models", 1): 2 * Settings().models_bytes}

            def value(title: str, target: int) -> float:
                result = prometheus.query(filled(shown[title][target]["expr"]))
                # A server under load may miss a scrape; its series are then missing.
                return float(result[0]["value"][1]) if result else math.nan

            until(lambda: {each: value(*each) for each in truth} == truth, 60, SCRAPE_S)
            for expression in expressions():
                is_shared = set(families(expression)) & shared_families()
                # Rates and ages differ with the time of the scrape, sizes with that of a look.
                if not is_shared or re.search(r"rate\(|increase\(|age_s|_bytes", expression):
                    continue

                def agree(expression: str = expression) -> bool:
                    both, *single = (
                        series(prometheus.query(filled(expression, instance)))
                        for instance in (".*", *targets)
                    )
                    return bool(both) and single == [both, both]

                until(agree, 60, SCRAPE_S)
