"""Release: one version everywhere, and the files that GitHub reads."""

import re
import tomllib
from pathlib import Path

import yaml

import dualstream
from dualstream.solvers import APPLY_VERSION

ROOT = Path(__file__).parent.parent
GITHUB = ROOT / ".github"


def test_all_files_name_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## (\S+)", changelog, re.M)[1]
    assert project["version"] == dualstream.__version__ == newest
    assert f"apply version {APPLY_VERSION}." in changelog


def test_ci_runs_what_exists():
    jobs = yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert ".ci/run" in commands and (ROOT / ".ci" / "run").stat().st_mode & 0o111
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    made = [command.split()[1] for command in commands if command.startswith("make ")]
    assert made and set(made) <= set(targets)
    [build] = [command for command in commands if command.startswith("docker build")]
    for argument in re.findall(r'--build-arg "?(\w+)=', build):
        assert f"\nARG {argument}=" in (ROOT / "Dockerfile").read_text()


def test_issue_forms_have_the_fields_that_github_requires():
    forms = [path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
    assert len(forms) == 2
    for path in forms:
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= set(form)
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields) > 0
        assert all(field["attributes"]["label"] for field in fields)
