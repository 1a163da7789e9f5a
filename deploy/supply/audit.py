"""Ask an index of advisories about all pinned versions: python -m deploy.supply.audit osv | pypi

Ends with 1 when one of them has a known vulnerability, or when the index left one out.
"""

import json
import subprocess
import sys
from typing import Any

from deploy.supply.distributions import ROOT


def verdict(told: dict[str, Any]) -> tuple[list[str], int]:
    """What is wrong, of pip-audit's JSON, and how many versions were audited.

    One that pip-audit skips is wrong too: it counts those as fine.
    """
    wrong, audited = [], 0
    for one in told["dependencies"]:
        if "skip_reason" in one:
            wrong.append(f"{one['name']}: not audited: {one['skip_reason']}")
            continue
        audited += 1
        wrong += [
            f"{one['name']} {one['version']}: {known['id']}, fixed in "
            f"{', '.join(known['fix_versions']) or 'no version'}"
            for known in one["vulns"]
        ]
    return wrong, audited


def main(index: str) -> int:
    asked = [sys.executable, "-m", "pip_audit", "--vulnerability-service", index]
    asked += ["--requirement", str(ROOT / "constraints.txt"), "--no-deps", "--disable-pip"]
    asked += ["--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(asked, stdout=subprocess.PIPE, text=True)  # noqa: S603 - no shell
    if not done.stdout:
        return done.returncode or 1
    wrong, audited = verdict(json.loads(done.stdout))
    for line in wrong:
        sys.stderr.write(f"{line}\n")
    sys.stdout.write(f"audited {audited} versions with {index}: {len(wrong)} findings\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
