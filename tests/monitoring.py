"""The configuration of Prometheus with seconds in place of minutes."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
METRICS = (ROOT / "docs/reference/metrics.md").read_text()
SPARSE = {"kind": "indexed", "dim": 8}
MEMBERS = [
    {"name": "dual", "algorithm": "dual_ascent", "loss": "hinge"},
    {"name": "steps", "algorithm": "sgd", "loss": "logistic"},
]


def documented() -> dict[str, str]:
    """Family -> kind, from the tables of the docs."""
    return dict(re.findall(r"^\| `((?:dualstream|process)_\w+)`[^|]*\| (\w+) \|", METRICS, re.M))


SCRAPE_S = 0.25


def hurried(directory: Path, *targets: str) -> Path:
    """Configuration and rules with seconds in place of minutes."""
    rules = (DEPLOY / "alerts.yml").read_text()
    rules = re.sub(r"for: \w+", "for: 1s", rules)
    for longer, shorter in (("15m", "3s"), ("1d", "5m"), ("1h", "5m")):
        rules = rules.replace(f"[{longer}]", f"[{shorter}]")
    (directory / "alerts.yml").write_text(rules)
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    config["global"] = dict.fromkeys(
        ("scrape_interval", "evaluation_interval"), f"{round(1000 * SCRAPE_S)}ms"
    )
    config["scrape_configs"][0]["static_configs"][0]["targets"] = list(targets)
    path = directory / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path
