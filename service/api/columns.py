"""GET /models/{id}/columns: what the columns of a stream hold, and which have moved."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field

from dualstream.service.api.common import registry_of
from dualstream.service.api.views import MaybeStale, staleness
from dualstream.service.models.model import Model
from dualstream.solvers import Column
from dualstream.wire.problems import Problem

router = APIRouter(prefix="/models/{model_id}", tags=["models"])

_NO_PROFILE = (
    "the model was created with spec_version {}, before profiles of columns (4); create a model "
    "with the same specification without spec_version under another name, and send its rows there"
)


class FrequentValue(BaseModel):
    """A frequent value of a column."""

    value: str
    count: int = Field(description="Rows that had it, at least.")


class ColumnView(BaseModel):
    """Profile of a column, over the learned rows since the first one that had it."""

    name: str = Field(description="Numbered features count from 1.")
    kind: Literal["number", "boolean", "category", "text", "time", "unknown"] = Field(
        description="Declared or seen first; unknown: no row with a value was learned."
    )
    count: int = Field(description="Rows with a value.")
    missing: int | None = Field(
        description="Rows without a value; null if the model has no room for names of new values."
    )
    missing_includes_zero: bool = Field(
        description="Whether 0 and false count as missing, as rows do not store them."
    )
    others: int = Field(description="Rows with a text in a column of numbers.")
    mean: float | None = Field(description="Of numbers; of texts, the words of a row.")
    sd: float | None = Field(description="Standard deviation.")
    minimum: float | None
    maximum: float | None
    top: list[FrequentValue] = Field(description="The most frequent values, at most 10.")
    last: float | str | None = Field(description="The last value; null of texts and times.")
    refused: int = Field(
        description="Rows that this process refused for the column since it started."
    )
    psi: float | None = Field(
        description="Population stability index of about the last 1,000 rows against the 10,000 "
        "before; null before 2,000 rows, and of times."
    )
    drift: Literal["none", "moderate", "large"] | None = Field(
        description="moderate: psi of at least 0.1; large: at least 0.25."
    )


class ColumnsView(MaybeStale):
    """Columns of a model, at most 256 in order of their first row."""

    model: str
    seq: int
    rows: int = Field(description="Rows counted: learned, with a weight above 0.")
    has_more: bool = Field(description="Whether the stream has more columns, which do not count.")
    columns: list[ColumnView]


@router.get("/columns", response_model=ColumnsView)
async def read_columns(
    model_id: str,
    request: Request,
    sort: Annotated[
        Literal["psi", "name"],
        Query(description="psi: columns that moved most first, then by name."),
    ] = "psi",
) -> Any:
    """Counts, moments or frequent values of each column, and its drift."""
    registry = registry_of(request)
    model = await registry.get(model_id)
    refused = registry.counters.refused_columns(model_id)
    found = await model.replica.view(partial(_columns_of, model, refused))
    if sort == "psi":
        found["columns"].sort(key=lambda one: -1.0 if one.psi is None else one.psi, reverse=True)
    return ColumnsView(model=model_id, **found, **staleness(model))


def _columns_of(model: Model, refused: Mapping[str, int]) -> dict[str, Any]:
    """Fields of ColumnsView; columns by name. Runs in a view. Raises Problem 404."""
    replica = model.replica
    profile = replica.profile
    if profile is None:
        raise Problem(404, "no-profile", _NO_PROFILE.format(replica.spec["spec_version"]))
    columns = profile.columns(replica.names.get, replica.names.are_full)
    views = [_view_of(one, refused.get(one.name, 0)) for one in columns]
    views += [
        _view_of(Column.without_rows(name), refused[name])
        for name in refused.keys() - {one.name for one in columns}
    ]
    return {
        "seq": replica.seq,
        "rows": profile.rows,
        "has_more": profile.has_more,
        "columns": sorted(views, key=lambda one: one.name),
    }


def _view_of(column: Column, refused: int) -> ColumnView:
    top = [FrequentValue(value=value, count=count) for value, count in column.top]
    others = {"top": top, "refused": refused, "drift": column.drift}
    return ColumnView(**asdict(column) | others)
