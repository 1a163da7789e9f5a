"""Release: one version everywhere, and the files that GitHub reads."""

import re
import tomllib
from pathlib import Path

import yaml

import dualstream
from dualstream.service.archive.format import MAGIC
from dualstream.service.journal.record import format as record_format
from dualstream.service.journal.sqlite import schema
from dualstream.solvers.numeric_identity import APPLY_VERSION
from dualstream.solvers.protocols import checksummed_state as state_format
from dualstream.solvers.spec.validate import SPEC_VERSION
from tests.pythons import debian13

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"


def test_all_files_name_one_version():
    version = dualstream.__version__
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == version
    assert f'image.version="{version}"' in (ROOT / "Dockerfile").read_text()
    assert f"dualstream:{version}\n" in (ROOT / "deploy/kubernetes/server/pod.yaml").read_text()
    chart = yaml.safe_load((ROOT / "deploy/helm/Chart.yaml").read_text())
    # Helm wants a semantic version.
    assert (chart["appVersion"], chart["version"]) == (version, version.replace(".dev", "-dev"))


def test_changelog_and_security_policy_say_whether_there_is_a_release():
    changelog = (ROOT / "CHANGELOG.md").read_text()
    sections = re.findall(r"^## (\S+)", changelog, re.M)
    is_released = not dualstream.__version__.endswith(".dev0")
    assert sections[0] == (dualstream.__version__ if is_released else "Unreleased")
    assert is_released or len(sections) == 1
    security = " ".join((ROOT / "SECURITY.md").read_text().split())
    assert ("there are no releases yet" in security) is not is_released


def test_changelog_names_the_versions_of_the_formats():
    [archive] = re.findall(rb"\d+", MAGIC)
    formats = (
        f"Formats: record {record_format.VERSION}, snapshot {state_format.FORMAT}, archive"
        f" {archive.decode()}, SQLite tables {schema.VERSION}, apply version {APPLY_VERSION},"
        f" `spec_version` {SPEC_VERSION}."
    )
    assert formats in (ROOT / "CHANGELOG.md").read_text()


def workflow(name):
    # YAML 1.1 reads the key `on` as true.
    read = yaml.safe_load((GITHUB / "workflows" / f"{name}.yml").read_text())
    steps = [step for job in read["jobs"].values() for step in job.get("steps", [])]
    return read[True], read["jobs"], steps


def test_ci_runs_what_exists():
    _, _, steps = workflow("ci")
    commands = [step["run"] for step in steps if "run" in step]
    assert ".ci/run" in commands and (ROOT / ".ci" / "run").stat().st_mode & 0o111
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    commands += (ROOT / ".ci" / "run").read_text().splitlines()
    made = [command.split()[1] for command in commands if command.startswith("make ")]
    assert {"test", "test-debian13", "dist"} <= set(made) <= set(targets)
    [build] = [command for command in commands if command.startswith("docker build")]
    for argument in re.findall(r'--build-arg "?(\w+)=', build):
        assert f"\nARG {argument}=" in (ROOT / "Dockerfile").read_text()


def test_a_tag_publishes_what_ci_has_built():
    of_ci, _, ci_steps = workflow("ci")
    triggers, jobs, steps = workflow("release")
    assert triggers == {"push": {"tags": ["v*"]}}
    assert jobs["ci"]["uses"] == "./.github/workflows/ci.yml" and "workflow_call" in of_ci
    publish = jobs.pop("publish")
    assert publish["needs"] == "ci" and jobs["ci"]["needs"] == "version"
    # Only the job that publishes can get a token from the index.
    assert publish["permissions"] == {"id-token": "write"}
    assert all("permissions" not in job for job in jobs.values())
    fetched, published = publish["steps"]
    [stored] = [step for step in ci_steps if "upload-artifact" in step.get("uses", "")]
    assert fetched["with"]["name"] == stored["with"]["name"]
    assert fetched["with"]["path"] == "dist", "the action publishes this folder"
    assert published["uses"].startswith("pypa/gh-action-pypi-publish@")
    used = [step["uses"] for step in (*steps, *ci_steps) if "uses" in step]
    assert all(re.search(r"@v\d", name) for name in used), used


def test_classifiers_name_the_pythons_of_ci():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: "
    named = {one.removeprefix(prefix) for one in project["classifiers"] if one.startswith(prefix)}
    _, jobs, _ = workflow("ci")
    [setup] = [step for step in jobs["package"]["steps"] if "setup-python" in step.get("uses", "")]
    assert named == {setup["with"]["python-version"], debian13.PYTHON}
    readme = (ROOT / "README.md").read_text()
    assert all(version in readme for version in named)


def test_issue_forms_have_the_fields_that_github_requires():
    forms = [path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
    assert len(forms) == 2
    for path in forms:
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= set(form)
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields) > 0
        assert all(field["attributes"]["label"] for field in fields)


def test_debian_13_is_skipped_where_root_may_not_mount(monkeypatch):
    monkeypatch.setattr(debian13.os, "geteuid", lambda: 0)
    monkeypatch.setattr(debian13.shutil, "which", lambda name: name)
    monkeypatch.setattr(debian13, "NAMESPACES", ("sh", "-c", "echo denied >&2; exit 1"))
    reason = debian13.why_not()
    assert reason.startswith("it needs the right to mount") and reason.endswith(": denied")
