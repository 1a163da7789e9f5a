"""bandit's findings in addition to ruff's rules `S`: python -m load_tests.static_analysis

ruff's security rules come from bandit and are part of `make lint`; each exception is marked in its
line, with its reason. bandit checks the same files and does not read these marks. Each finding of
bandit must be in a statement with such a mark, or of a kind listed in KNOWN.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from load_tests.security_report import record

TITLE = "Static analysis"
FOLDERS = ("service", "solvers", "consume", "client", "wire", "deploy/supply")
KNOWN = {
    "B101": "an assert states for the type checker what the code above it ensures",
    "B404": "subprocess is imported; B603 checks each of its calls",
    "B105": "a word that is a name, and no password",
    "B107": "as B105",
}
"""Kinds of finding that are not a defect by themselves, with the reason."""
_NAMED = re.compile(r"# (?:ruff: )?noqa: [A-Z0-9, ]*S\d{3}")


def main() -> bool:
    command = [sys.executable, "-m", "bandit", "-q", "-f", "json", "-r", *FOLDERS]
    got = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    lines = Counter[str]()
    findings: list[str] = []
    for one in got["results"]:
        text = Path(one["filename"]).read_text().splitlines()
        within = text[min(one["line_range"]) - 1 : max(one["line_range"])]
        if one["test_id"] in KNOWN:
            lines[one["test_id"]] += 1
        elif any(_NAMED.search(line) for line in (*within, *text[:5])):
            lines["named"] += 1
        else:
            what = f"{one['test_id']} {one['issue_text']}"
            findings.append(f"{one['filename']}:{one['line_number']}: {what}")
    clean = ["ruff", "check", "-q", "--select", "S", "--ignore", "S101", *FOLDERS]
    ruff = subprocess.run([sys.executable, "-m", *clean])
    record(
        TITLE,
        [
            f"ruff's security rules (`S`, taken from bandit) over {', '.join(FOLDERS)}:"
            f" {'clean' if ruff.returncode == 0 else '**NOT CLEAN**'}; part of `make lint`.",
            f"bandit itself: {len(got['results'])} places, of which {lines['named']} are marked"
            f" in their line with a reason; {len(findings)} are left.",
            "",
            *(f"- {name}, {lines[name]}: {why}." for name, why in KNOWN.items() if lines[name]),
            *(f"- {one}" for one in findings),
        ],
    )
    sys.stdout.write("\n".join([f"{len(findings)} findings", *findings]) + "\n")
    return not findings and ruff.returncode == 0


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
