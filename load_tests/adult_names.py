"""Adult's rows as a user would write them: 14 named features where LIBSVM's file has 123 columns.

The file (a9a) has a column for each category, and for each fifth of a number; the names and the
order of the categories are those of UCI's adult.names. A number comes back as one from its fifth.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final

Value = str | int

_NUMBERS: Final[Mapping[str, Sequence[int]]] = {
    "age": (22, 30, 37, 45, 58),
    "fnlwgt": (65_000, 130_000, 178_000, 220_000, 330_000),
    "education-num": (7, 9, 10, 12, 14),
    "capital-gain": (0, 7_298),
    "capital-loss": (0, 1_902),
    "hours-per-week": (20, 35, 40, 45, 60),
}
_CATEGORIES: Final[Mapping[str, str]] = {
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov "
    "Without-pay Never-worked",
    "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th "
    "12th Masters 1st-4th 10th Doctorate 5th-6th Preschool",
    "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed "
    "Married-spouse-absent Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty "
    "Handlers-cleaners Machine-op-inspct Adm-clerical Farming-fishing Transport-moving "
    "Priv-house-serv Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "native-country": "United-States Cambodia England Puerto-Rico Canada Germany "
    "Outlying-US(Guam-USVI-etc) India Japan Greece South China Cuba Iran Honduras Philippines "
    "Italy Poland Jamaica Vietnam Mexico Portugal Ireland France Dominican-Republic Laos Ecuador "
    "Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia El-Salvador "
    "Trinadad&Tobago Peru Hong Holand-Netherlands",
}
_ORDER: Final = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex "
    "capital-gain capital-loss hours-per-week native-country"
).split()

_COLUMNS: Final[Sequence[tuple[str, Value]]] = [
    (name, value)
    for name in _ORDER
    for value in (_NUMBERS[name] if name in _NUMBERS else _CATEGORIES[name].split())
]
assert len(_COLUMNS) == 123


def named_json(line: bytes) -> str:
    """A body of learn for a line of the file."""
    label, *pairs = line.decode().split()
    x = dict(_COLUMNS[int(pair.partition(":")[0]) - 1] for pair in pairs)
    return json.dumps({"x": x, "y": int(label)}, separators=(",", ":"))
