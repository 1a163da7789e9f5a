"""GET /models/{id}/columns: what the columns of a stream hold, and which have moved."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from dualstream.service.api.common import registry_of
from dualstream.service.api.views import answer, staleness
from dualstream.service.codecs.table_columns import RESERVED
from dualstream.service.features.columns.profile import Profile
from dualstream.service.http.openapi import returns
from dualstream.service.models.model import Model
from dualstream.solvers.profile import Column as ProfiledColumn
from dualstream.wire.responses import Bin, Column, Columns, FrequentValue

router = APIRouter(prefix="/models/{model_id}", tags=["models"])


@router.get("/columns", responses={200: returns(Columns)})
async def read_columns(
    model_id: str,
    request: Request,
    sort: Annotated[
        Literal["psi", "name"],
        Query(description="psi: columns that moved most first, then by name."),
    ] = "psi",
) -> Response:
    """Counts, moments or frequent values of each column, and its drift."""
    registry = registry_of(request)
    model = await registry.get(model_id)
    refused = registry.counters.refused_columns(model_id)
    view = await model.replica.view(partial(_columns_of, model, refused))
    if sort == "psi":
        view["columns"].sort(key=lambda one: -1.0 if one.psi is None else one.psi, reverse=True)
    return answer(Columns(model=model_id, **view, **staleness(model)))


def _columns_of(model: Model, refused: Mapping[str, int]) -> dict[str, Any]:
    """Fields of Columns; columns by name. Runs in a view."""
    replica = model.replica
    part = replica.parts.find(Profile)
    assert part is not None
    profile = part.columns
    columns = profile.columns(replica.names.get, replica.names.are_full)
    views = [_view_of(one, refused.get(one.name, 0)) for one in columns]
    views += [
        _view_of(ProfiledColumn.without_rows(name), refused[name])
        for name in refused.keys() - {one.name for one in columns}
    ]
    return {
        "seq": replica.seq,
        "rows": profile.rows,
        "has_more": profile.has_more,
        "roles": _roles_of(model),
        "columns": sorted(views, key=lambda one: one.name),
    }


def _roles_of(model: Model) -> dict[str, str]:
    reader = model.row_schema.columns
    if reader is None:
        return {name: "label" if role == "y" else role for name, role in RESERVED.items()}
    named = {reader.label: "label", reader.weight: "weight", reader.id: "id"}
    return {name: role for name, role in named.items() if name is not None}


def _view_of(column: ProfiledColumn, refused: int) -> Column:
    top = [FrequentValue(*pair) for pair in column.top]
    bins = [Bin(*one) for one in column.bins]
    others = {"top": top, "bins": bins, "refused": refused, "drift": column.drift}
    return Column(**asdict(column) | others)
