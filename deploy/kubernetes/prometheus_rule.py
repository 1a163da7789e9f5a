"""PrometheusRule of the alert rules: python -m deploy.kubernetes.prometheus_rule"""

import textwrap
from pathlib import Path

_RULES = Path(__file__).parent.parent / "alerts.yml"
TARGET = Path(__file__).parent / "server" / "prometheus-rule.yaml"
_HEAD = """\
# Written from deploy/alerts.yml by `python -m deploy.kubernetes.prometheus_rule`.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: dualstream
spec:
"""


def manifest() -> str:
    """The rules as a resource of the Prometheus operator."""
    return _HEAD + textwrap.indent(_RULES.read_text(), "  ")


if __name__ == "__main__":
    TARGET.write_text(manifest())
