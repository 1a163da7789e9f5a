"""The demonstration: what it sends is Adult by name, and it runs to its end."""

import io
import re
from collections import Counter
from itertools import islice

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from dualstream.service.cli import app
from dualstream.service.cli.demo.adult import ATTRIBUTES, COLUMNS, adult_lines, adult_samples
from dualstream.service.cli.demo.run import run_demo
from dualstream.solvers.jit import DISABLED
from dualstream.solvers.rows.hashing import hash_names

# Rows of UCI's adult.data that have each value.
COUNTS = {
    "workclass": {"Private": 22_696, "Self-emp-inc": 1_116, "Never-worked": 7},
    "education": {"HS-grad": 10_501, "Bachelors": 5_355, "Doctorate": 413, "Preschool": 51},
    "marital-status": {"Married-civ-spouse": 14_976, "Widowed": 993, "Married-AF-spouse": 23},
    "occupation": {"Prof-specialty": 4_140, "Sales": 3_650, "Armed-Forces": 9},
    "relationship": {"Husband": 13_193, "Wife": 1_568, "Other-relative": 981},
    "race": {"White": 27_816, "Black": 3_124, "Other": 271},
    "sex": {"Female": 10_771, "Male": 21_790},
    "capital-gain": {"none": 29_849},
    "capital-loss": {"none": 31_042},
    "native-country": {"United-States": 29_170, "Mexico": 643, "Holand-Netherlands": 1},
}


def test_columns_have_the_names_of_the_source():
    samples = list(adult_samples())
    assert len(COLUMNS) == 123 and len(samples) == 32_561
    result = {name: Counter(sample["x"].get(name) for sample in samples) for name in ATTRIBUTES}
    for name, counts in COUNTS.items():
        assert {value: result[name][value] for value in counts} == counts
    # The first row of the source: 39, State-gov, Bachelors, 13 years, ..., 2174, 0, 40 hours.
    first = samples[0]["x"]
    assert (first["workclass"], first["education"]) == ("State-gov", "Bachelors")
    assert (first["occupation"], first["relationship"]) == ("Adm-clerical", "Not-in-family")
    assert (first["capital-gain"], first["native-country"]) == ("some", "United-States")


def test_each_row_has_one_value_of_an_attribute_and_husbands_are_men():
    years: dict[str, set[str]] = {}
    sexes = Counter()
    for line, sample in zip(adult_lines(), adult_samples(), strict=True):
        assert len(sample["x"]) == len(line.split()) - 1
        years.setdefault(sample["x"]["education"], set()).add(sample["x"]["education-num"])
        sexes[sample["x"]["relationship"], sample["x"]["sex"]] += 1
    # A level of education has one number of years.
    assert all(len(numbers) == 1 for numbers in years.values())
    assert sexes["Husband", "Male"] > 1000 * sexes["Husband", "Female"]
    assert sexes["Wife", "Female"] > 500 * sexes["Wife", "Male"]


def test_no_two_columns_share_a_place():
    names = [f"{attribute}={value}" for attribute, value in COLUMNS]
    assert len(set(hash_names(names, 18).tolist())) == len(names)


@pytest.mark.skipif(DISABLED, reason="too many rows without a compiler")
def test_the_demonstration_ends_well_and_stays_until_an_interrupt(monkeypatch):
    said = io.StringIO()

    def interrupt() -> None:
        url = re.search(
            r"The dashboard is at (http://127.0.0.1:\d+)/#/models/adult until", said.getvalue()
        )
        assert url is not None and httpx.get(f"{url.group(1)}/models/adult").json()["seq"] == 6_000
        raise KeyboardInterrupt

    few = list(islice(adult_samples(), 6_000))
    monkeypatch.setattr("dualstream.service.cli.demo.run.adult_samples", lambda: few)
    monkeypatch.setattr("dualstream.service.cli.demo.run._wait_forever", interrupt)
    assert run_demo(Console(file=said, width=120), stay=True) == 0
    assert "GET /members" in said.getvalue() and "occupation=" in said.getvalue()


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    file = tmp_path / "absent" / "file"
    done = CliRunner().invoke(app, ["demo", "--write", str(file)], env={"COLUMNS": "200"})
    assert done.exit_code == 2 and done.stderr == f"{file}: No such file or directory\n"
