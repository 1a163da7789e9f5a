"""Audit all pinned versions with pip-audit: python -m deploy.supply.audit osv | pypi

Exits with 1 if a version has a known vulnerability, or if the index left a version out.
"""

import json
import subprocess
import sys
from typing import Any

from deploy.supply.distributions import ROOT


def outcome(report: dict[str, Any]) -> tuple[list[str], int]:
    """Findings in pip-audit's JSON, and the number of audited versions.

    A skipped version is a finding, too: pip-audit counts it as clean.
    """
    wrong, audited = [], 0
    for one in report["dependencies"]:
        if "skip_reason" in one:
            wrong.append(f"{one['name']}: not audited: {one['skip_reason']}")
            continue
        audited += 1
        wrong += [
            f"{one['name']} {one['version']}: {advisory['id']}, fixed in "
            f"{', '.join(advisory['fix_versions']) or 'no version'}"
            for advisory in one["vulns"]
        ]
    return wrong, audited


def main(index: str) -> int:
    command = [sys.executable, "-m", "pip_audit", "--vulnerability-service", index]
    command += ["--requirement", str(ROOT / "constraints.txt"), "--no-deps", "--disable-pip"]
    command += ["--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - no shell
    if not done.stdout:
        return done.returncode or 1
    wrong, audited = outcome(json.loads(done.stdout))
    for line in wrong:
        sys.stderr.write(f"{line}\n")
    sys.stdout.write(f"audited {audited} versions with {index}: {len(wrong)} findings\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
