"""Methods that manage models: their state, members, versions, refits, samples and sources."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from dualstream.client.calls import Call, Steps, encoded, model_path, new_key, query_of, with_key
from dualstream.client.errors import BadInput, Refused
from dualstream.client.method import JSON_BODY, Methods, method
from dualstream.client.responses import Timeline
from dualstream.wire.changes import (
    Change,
    ChangePage,
    Refit,
    Refits,
    Resumed,
    RolledBack,
    SourceCursor,
    SourceList,
    Unlearned,
    Version,
    Versions,
)
from dualstream.wire.responses import (
    Certificate,
    Columns,
    Comparison,
    Confusion,
    Curves,
    IntervalRows,
    Member,
    Members,
    Model,
    ModelPage,
    SegmentMetrics,
    Support,
    Trends,
    Weights,
)
from dualstream.wire.sources import Offset

Spec: TypeAlias = Mapping[str, Any]

PRECONDITION_FAILED = 412


class ManageMethods(Methods):
    """Methods of a client that manage models."""

    # -- models ----------------------------------------------------------------------------------

    @method
    def create(
        self, model: str, spec: Spec | None = None, *, replace: bool = False
    ) -> Steps[Model]:
        """Create a model, or return the existing one if it has the same spec.

        With `replace`, a model with another spec is deleted first, with all it has learned.
        """
        path, body = model_path(model), encoded(spec or {})
        if replace:
            try:
                return (yield from self._do(Call("PUT", path, Model, {}, {"if-match": "*"}, body)))
            except Refused as refused:
                if refused.status != PRECONDITION_FAILED:  # there is no such model
                    raise
        return (yield from self._do(Call("PUT", path, Model, body=body)))

    @method
    def get(self, model: str, *, digest: bool = False) -> Call[Model]:
        """The spec, seq and counts of a model; with `digest` also the digest of its state."""
        return Call("GET", model_path(model), Model, query_of(digest=digest))

    @method
    def models(self) -> Steps[list[Model]]:
        """All models of the store, in the order of their ids."""
        models: list[Model] = []
        after: str | None = ""
        while after is not None:
            query = query_of(after=after, limit=1000)
            page = yield from self._do(Call[ModelPage]("GET", "/models", ModelPage, query))
            models += page.models
            after = page.next
        return models

    @method
    def audit(self, model: str | None = None, *, after: str | None = None) -> Steps[list[Change]]:
        """The audit log, oldest change first: of all models, or of one.

        `after` is the `place` of the last change already seen.
        """
        changes: list[Change] = []
        position: str | None = after or ""
        while position is not None:
            query = query_of(model=model, after=position, limit=1000)
            page = yield from self._do(Call[ChangePage]("GET", "/audit", ChangePage, query))
            changes += page.changes
            position = page.next
        return changes

    @method
    def delete(self, model: str) -> Call[None]:
        """Delete a model, its journal and its versions."""
        return Call("DELETE", model_path(model), None)

    @method
    def metrics(self, model: str) -> Call[dict[str, Any]]:
        """Progressive metrics, with baselines: `since_start`, `rolling`, `fading`."""
        return Call("GET", model_path(model, "metrics"), dict[str, Any])

    @method
    def segments(self, model: str, by: str) -> Call[SegmentMetrics]:
        """Metrics by the values of a column of `segments`, the most harmful one first."""
        return Call("GET", model_path(model, "metrics"), SegmentMetrics, query_of(by=by))

    @method
    def timeline(self, model: str) -> Call[Timeline]:
        """Metrics over time, and the points where the loss drifted."""
        return Call("GET", model_path(model, "timeline"), Timeline)

    @method
    def columns(self, model: str, *, sort: str = "psi") -> Call[Columns]:
        """What each column of the stream holds; by drift (`psi`) or `name`."""
        return Call("GET", model_path(model, "columns"), Columns, query_of(sort=sort))

    @method
    def weights(self, model: str, *, top: int = 20, member: str | None = None) -> Call[Weights]:
        """The largest weights, by magnitude."""
        return Call("GET", model_path(model, "weights"), Weights, query_of(top=top, member=member))

    @method
    def curves(
        self, model: str, *, top: int = 128, member: str | None = None, label: Any = None
    ) -> Call[Curves]:
        """The functions of single features that `splines` have learned; of one class by `label`."""
        text = None if label is None else encoded(label).decode()
        query = query_of(top=top, member=member, label=text)
        return Call("GET", model_path(model, "curves"), Curves, query)

    @method
    def confusion(self, model: str, *, top: int = 20) -> Call[Confusion]:
        """Classes of the last 1,000 rows against the predicted ones; `top` have a row each."""
        return Call("GET", model_path(model, "confusion"), Confusion, query_of(top=top))

    @method
    def intervals(self, model: str) -> Call[IntervalRows]:
        """Predictions, intervals and labels of the last 200 rows of a regression."""
        return Call("GET", model_path(model, "intervals"), IntervalRows)

    @method
    def version_metrics(self, model: str, version: str) -> Call[dict[str, Any]]:
        """Progressive metrics when the version was saved, and `points` of the timeline."""
        return Call("GET", model_path(model, "versions", version, "metrics"), dict[str, Any])

    @method
    def trends(self, model: str) -> Call[Trends]:
        """AUC, coverage, costs, alerts and shares of members over the rows."""
        return Call("GET", model_path(model, "trends"), Trends)

    @method
    def support(self, model: str) -> Call[Support]:
        """The features that a sparse model uses."""
        return Call("GET", model_path(model, "support"), Support)

    @method
    def certificate(self, model: str, *, member: str | None = None) -> Call[Certificate]:
        """The duality gap: how far the served weights are from the optimum on their window."""
        return Call("GET", model_path(model, "certificate"), Certificate, query_of(member=member))

    @method
    def export(self, model: str, format: str = "json", *, member: str | None = None) -> Call[bytes]:
        """The model, or one member, as a file for another program: json, onnx, sklearn-coef, vw,
        xgboost."""
        return Call(
            "GET", model_path(model, "export"), bytes, query_of(format=format, member=member)
        )

    @method
    def ready(self) -> Call[dict[str, Any]]:
        """The state of the server, once it is ready."""
        return Call("GET", "/readyz", dict[str, Any], {"verbose": ""})

    # -- members, versions, samples --------------------------------------------------------------

    @method
    def members(self, model: str) -> Call[Members]:
        """The members of a portfolio and their weights."""
        return Call("GET", model_path(model, "members"), Members)

    @method
    def add_member(self, model: str, spec: Spec, *, key: str | None = None) -> Call[Member]:
        """Add a member, which first learns the rows that the model retains."""
        path, headers = model_path(model, "members"), with_key(key or new_key())
        return Call("POST", path, Member, {}, headers, encoded(spec))

    @method
    def remove_member(self, model: str, name: str) -> Call[None]:
        """Delete a member and what it has learned."""
        return Call("DELETE", model_path(model, "members", name), None)

    @method
    def promote(self, model: str, name: str) -> Call[Member]:
        """Serve this member alone."""
        return Call("POST", model_path(model, "members", name, "promote"), Member)

    @method
    def end_promotion(self, model: str) -> Call[Members]:
        """Serve all members again."""
        return Call("DELETE", model_path(model, "promotion"), Members)

    @method
    def compare_members(
        self, model: str, a: str, b: str, *, level: float = 0.95
    ) -> Call[Comparison]:
        """Which of two members has the smaller loss, with a confidence interval."""
        path = model_path(model, "members", "compare")
        return Call("GET", path, Comparison, query_of(a=a, b=b, level=level))

    @method
    def take_version(self, model: str, name: str | None = None, *, note: str = "") -> Call[Version]:
        """Save a full copy of the state under a name."""
        body = encoded({"name": name, "note": note})
        return Call("POST", model_path(model, "versions"), Version, {}, JSON_BODY, body)

    @method
    def versions(self, model: str) -> Call[Versions]:
        """All versions, and the first seq in the journal."""
        return Call("GET", model_path(model, "versions"), Versions)

    @method
    def delete_version(self, model: str, name: str) -> Call[None]:
        """Delete a version."""
        return Call("DELETE", model_path(model, "versions", name), None)

    @method
    def roll_back(
        self,
        model: str,
        *,
        version: str | None = None,
        seq: int | None = None,
        key: str | None = None,
    ) -> Call[RolledBack]:
        """Restore an earlier state, by the name of a version or by a seq."""
        if (version is None) == (seq is None):
            raise BadInput("give either a version or a seq")
        body = encoded({"version": version} if seq is None else {"seq": seq})
        headers = {**JSON_BODY, **with_key(key or new_key())}
        return Call("POST", model_path(model, "rollback"), RolledBack, {}, headers, body)

    @method
    def resume(self, model: str, *, rows: str, key: str | None = None) -> Call[Resumed]:
        """End a pause of learning; `learn` or `drop` the rows in quarantine."""
        if rows not in ("learn", "drop"):
            raise BadInput(f"rows must be 'learn' or 'drop', got {rows!r}")
        headers = with_key(key or new_key())
        return Call("POST", model_path(model, "resume"), Resumed, {"rows": rows}, headers)

    @method
    def refit(
        self,
        model: str,
        *,
        method: str | None = None,
        tol: float | None = None,
        max_epochs: int | None = None,
        rows: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Call[Refit]:
        """Begin to solve the model's window to the optimum; `read_refit` has the progress.

        options  of the method, such as {"parts": 8} of mcpa
        """
        fields: dict[str, Any] = {"method": method, "tol": tol, "max_epochs": max_epochs}
        fields |= {"rows": rows, "options": options}
        body = encoded({name: value for name, value in fields.items() if value is not None})
        return Call("POST", model_path(model, "refit"), Refit, {}, JSON_BODY, body)

    @method
    def refits(self, model: str) -> Call[Refits]:
        """The last refits, newest first."""
        return Call("GET", model_path(model, "refits"), Refits)

    @method
    def read_refit(self, model: str, job: str) -> Call[Refit]:
        """Progress and outcome of a refit."""
        return Call("GET", model_path(model, "refits", job), Refit)

    @method
    def cancel_refit(self, model: str, job: str) -> Call[Refit]:
        """Cancel a refit; one that has ended is returned as it is."""
        return Call("DELETE", model_path(model, "refits", job), Refit)

    @method
    def set_weights(
        self,
        model: str,
        weights: Mapping[str, float] | Sequence[float],
        intercept: float = 0.0,
        *,
        rows: int,
        objective: float | None = None,
        gap: float | None = None,
        key: str | None = None,
    ) -> Call[Refit]:
        """Replace the weights of a linear model by weights that were computed elsewhere.

        weights         by name of the feature; a sequence is that of features 1, 2, ...
        rows            number of rows that they were computed from
        objective, gap  of the model's problem at these weights, if known
        """
        if not isinstance(weights, Mapping):
            weights = {str(index): weight for index, weight in enumerate(weights, 1)}
        named = {name: float(weight) for name, weight in weights.items()}
        fields = {"weights": named, "intercept": float(intercept), "rows": rows}
        if objective is not None or gap is not None:
            fields |= {"objective": objective, "gap": gap}
        headers = {**JSON_BODY, **with_key(key or new_key())}
        return Call("PUT", model_path(model, "weights"), Refit, {}, headers, encoded(fields))

    @method
    def unlearn(self, model: str, sample: str | int) -> Call[Unlearned]:
        """Unlearn a retained sample; repeat the call until its `status` is done."""
        return Call("DELETE", model_path(model, "samples", str(sample)), Unlearned)

    @method
    def sources(self, model: str) -> Steps[list[SourceCursor]]:
        """The sources of a model, by name."""
        call = Call[SourceList]("GET", model_path(model, "sources"), SourceList)
        return (yield from self._do(call)).sources

    @method
    def set_source(self, model: str, source: str, next: Offset) -> Call[SourceCursor]:
        """Set the offset at which the next batch of a source begins."""
        path, body = model_path(model, "sources", source), encoded({"next": next})
        return Call("PUT", path, SourceCursor, {}, JSON_BODY, body)

    @method
    def forget_source(self, model: str, source: str) -> Call[None]:
        """Forget a source. A batch with `first` begins it again, at any offset."""
        return Call("DELETE", model_path(model, "sources", source), None)
