"""UCI Adult data set as samples with named attributes.

The packaged file is LIBSVM text of 123 binary columns: one per value of the 14 attributes, in UCI's
order. The six numeric attributes are ranges from low to high; capital-gain and capital-loss are
only "above 0" or not.
"""

import csv
import lzma
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

_RANGES = tuple(f"range {index} of 5" for index in range(1, 6))
_GAINS = ("none", "some")

ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    "age": _RANGES,
    "workclass": tuple(
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay "
        "Never-worked".split()
    ),
    "fnlwgt": _RANGES,
    "education": tuple(
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th "
        "Masters 1st-4th 10th Doctorate 5th-6th Preschool".split()
    ),
    "education-num": _RANGES,
    "marital-status": tuple(
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
        "Married-AF-spouse".split()
    ),
    "occupation": tuple(
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
        "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
        "Priv-house-serv Protective-serv Armed-Forces".split()
    ),
    "relationship": tuple("Wife Own-child Husband Not-in-family Other-relative Unmarried".split()),
    "race": tuple("White Asian-Pac-Islander Amer-Indian-Eskimo Other Black".split()),
    "sex": ("Female", "Male"),
    "capital-gain": _GAINS,
    "capital-loss": _GAINS,
    "hours-per-week": _RANGES,
    "native-country": tuple(
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) "
        "India Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica "
        "Vietnam Mexico Portugal Ireland France Dominican-Republic Laos Ecuador Taiwan Haiti "
        "Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador "
        "Trinadad&Tobago Peru Hong Holand-Netherlands".split()
    ),
}

COLUMNS: tuple[tuple[str, str], ...] = tuple(
    (attribute, value) for attribute, values in ATTRIBUTES.items() for value in values
)
"""Attribute and value of each column; the first one has index 1."""


def adult_lines() -> list[bytes]:
    """The 32,561 rows as LIBSVM lines, in file order."""
    packed = files("dualstream.service.cli.demo").joinpath("adult.xz").read_bytes()
    return lzma.decompress(packed).splitlines()


def sample_of(line: bytes) -> dict[str, Any]:
    """A row by name: {"x": {"age": "range 3 of 5", "sex": "Male", ...}, "y": -1}.

    Unknown attributes of the row are absent.
    """
    label, *entries = line.decode().split()
    columns = (int(entry.partition(":")[0]) for entry in entries)
    return {"x": dict(COLUMNS[column - 1] for column in columns), "y": int(label)}


def adult_samples() -> Iterator[dict[str, Any]]:
    """All rows by name, in file order."""
    return map(sample_of, adult_lines())


def write_csv(path: Path) -> None:
    """Write all rows as CSV, with the label in the column `income`, as UCI's file has it."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*ATTRIBUTES, "income"], lineterminator="\n")
        writer.writeheader()
        for sample in adult_samples():
            writer.writerow(sample["x"] | {"income": ">50K" if sample["y"] > 0 else "<=50K"})
