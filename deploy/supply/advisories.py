"""Find a reachable index of advisories: python -m deploy.supply.advisories

Prints its name, as pip-audit calls it. Without one, prints the reasons on standard error and
exits with 1.
"""

import sys

import httpx

# A version with known advisories: an index that has none of them is of no use.
PROBES = {
    "osv": ("POST", "https://api.osv.dev/v1/query"),
    "pypi": ("GET", "https://pypi.org/pypi/jinja2/2.4.1/json"),
}
ASKED = {"version": "2.4.1", "package": {"name": "jinja2", "ecosystem": "PyPI"}}
WITHIN_S = 5.0


def why_not(index: str, client: httpx.Client) -> str | None:
    """Reason why this index is of no use; None if it returns vulnerabilities."""
    method, address = PROBES[index]
    try:
        answer = client.request(method, address, json=ASKED if method == "POST" else None)
        if answer.status_code != httpx.codes.OK:
            return f"answers {answer.status_code}"
        document = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        return str(error)
    advisories = document.get("vulns" if index == "osv" else "vulnerabilities")
    return None if advisories else "knows of no advisories"


def main() -> int:
    reasons = []
    with httpx.Client(timeout=WITHIN_S) as client:
        for index in PROBES:
            reason = why_not(index, client)
            if reason is None:
                sys.stdout.write(f"{index}\n")
                return 0
            reasons.append(f"{index}: {reason}")
    sys.stderr.write(
        f"AUDIT SKIPPED: no index of advisories can be reached ({'; '.join(reasons)}); "
        "no version in constraints.txt was audited\n"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
