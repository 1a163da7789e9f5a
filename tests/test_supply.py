"""Supply chain: pinned versions, licences and audits of all dependencies."""

import httpx
import pytest

from deploy.supply import advisories, audit
from deploy.supply.distributions import extras, pins, reached, requirements
from deploy.supply.licences import PAGE, page
from deploy.supply.vendored import FOLDER, vendored


@pytest.mark.parametrize("extra", [None, *extras()])
def test_all_that_is_installed_is_pinned_and_is_that_version(extra):
    versions = pins()
    for name, distribution in reached(requirements(extra)).items():
        if name == "pip":  # required by pip-audit and part of every environment
            continue
        assert name in versions, f"{name}, of {extra or 'the core'}, is not in constraints.txt"
        if distribution is not None:
            assert distribution.version == versions[name], name


def test_what_is_reached_is_what_pip_installed():
    # A hand-picked sample: required by the project, and behind three other packages.
    result = reached(requirements("server"))
    assert {"uvloop", "python-dotenv", "mdurl", "llvmlite"} <= result.keys()
    assert not {"colorama", "pytest"} & result.keys()
    assert all(one.metadata["Name"] for one in result.values())


def test_the_client_alone_needs_neither_the_server_nor_the_learners():
    result = reached(requirements())
    assert {"httpx", "msgspec", "rich", "typer"} <= result.keys()
    assert not {"fastapi", "numba", "numpy", "redis", "uvicorn"} & result.keys()


def test_the_page_of_licences_is_up_to_date():
    assert PAGE.read_text() == page(), "run: python -m deploy.supply.licences"
    assert "not said" not in PAGE.read_text()


def test_each_vendored_library_has_its_licence_and_its_version_beside_it():
    assert {one.folder for one in vendored()} == {path for path in FOLDER.iterdir()}
    for one in vendored():
        words = {"MIT": "Permission is hereby granted", "Apache-2.0": "Apache License"}
        assert words[one.licence] in (one.folder / "LICENSE").read_text()


def test_an_audit_that_leaves_one_out_is_not_clean():
    report = {
        "dependencies": [
            {"name": "good", "version": "1", "vulns": []},
            {"name": "bad", "version": "2", "vulns": [{"id": "X-1", "fix_versions": ["3"]}]},
            {"name": "unknown", "skip_reason": "not found"},
        ]
    }
    wrong, audited = audit.outcome(report)
    assert audited == 2
    assert wrong == ["bad 2: X-1, fixed in 3", "unknown: not audited: not found"]


def test_an_index_that_knows_no_advisory_of_a_version_that_has_some_is_not_asked():
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.host == "pypi.org":
            return httpx.Response(200, json={"info": {}, "vulnerabilities": []})
        return httpx.Response(200, json={"vulns": [{"id": "GHSA-462w-v97r-4m45"}]})

    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        assert advisories.why_not("pypi", client) == "knows of no advisories"
        assert advisories.why_not("osv", client) is None
