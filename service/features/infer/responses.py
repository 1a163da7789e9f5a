"""Response of `POST /columns/infer`, and the document of `dualstream infer --json`."""

from typing import Annotated, Any

from msgspec import Struct

from dualstream.wire.responses import about


class InferredColumn(Struct):
    """What a column of a sample is, and why."""

    name: str
    type: Annotated[Any, about("A type of `columns`, or a role: label, id or weight.")]
    reason: str
    missing: Annotated[int, about("Rows in which it is missing.")]


class InferredGroup(Struct):
    """A group of `history`, and why."""

    group: dict[str, Any]
    reason: str


class Inferred(Struct):
    """A proposal, as `dualstream infer --json` prints it."""

    spec: Annotated[
        dict[str, Any], about("The fields task, labels and columns; history, if requested.")
    ]
    rows: Annotated[int, about("Rows of the sample that were read.")]
    columns: list[InferredColumn]
    history: Annotated[
        list[InferredGroup], about("Groups of `history` that fit, the most useful first.")
    ]
    warnings: list[str]
