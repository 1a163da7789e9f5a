"""Units of articles that stores sell in each of 130 weeks: the file DemandFnotNull."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from load_tests.records import files
from load_tests.streams.late_stream import Spec, Stream
from load_tests.streams.payments import DAY_S

WEEK_S = 7 * DAY_S
ROWS_OF_A_WEEK = 1_155
FIRST = 1_295_222_400
"""2011-01-17, a Monday. The file has the year and the week as numbers, and no dates."""
NUMBERS = ("year", "week", "price", "base_price", "featured", "displayed")
COLUMNS = (*NUMBERS[:2], "store", "article", *NUMBERS[2:])

BY_BOTH: Spec = {
    "by": ["store", "article"],
    "time": "at",
    "of": "price",
    "stats": ["change", "label_mean"],
    "half_life": ["35d", "140d"],
    "labels": 3,
}


def demand_stream() -> Stream:
    """Rows in the order of the file. The label: units sold. All rows of a week have one time."""
    file, texts, seconds = files.read("DemandFnotNull"), [], []
    for number, values in enumerate(file.columns.tolist()):
        at = FIRST + number // ROWS_OF_A_WEEK * int(WEEK_S)
        cells = {
            name: value
            for name, value in zip(COLUMNS, values, strict=True)
            if not math.isnan(value)
        }
        texts.append(json.dumps({"at": at, **cells})[:-1])
        seconds.append(float(at))
    return Stream(
        "units",
        texts,
        np.array(seconds),
        file.targets.astype(int),
        step_s=WEEK_S,
        objective="regression",
    )


def demand_spec(keys: str, history: Sequence[Spec] = ()) -> Spec:
    types: dict[str, Any] = dict.fromkeys(COLUMNS, "number")
    types |= dict.fromkeys(("store", "article"), keys)
    types["at"] = {"kind": "time", "parts": ["hour"]}
    spec = {"task": "regression", "columns": {"label": "units", "id": "tx", "types": types}}
    return spec | ({"history": list(history)} if history else {})
