"""Methods that score rows."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from dualstream.client import rows
from dualstream.client.arrow_tables import scores_table
from dualstream.client.calls import JSON, Call, Next, Steps, model_path, query_of
from dualstream.client.errors import BadInput, Refused
from dualstream.client.method import Methods, bodies_ahead, check_table, method
from dualstream.client.resumable_files import Piece, RowFile
from dualstream.client.row_values import plain, sample_line
from dualstream.wire.problem_json import MAX_ERRORS
from dualstream.wire.schemas import (
    MAX_EXPLAINED,
    Explanation,
    Predicted,
    PredictedMany,
    join_fields,
)

T = TypeVar("T")


class PredictMethods(Methods):
    """Methods of a client that score rows."""

    @method
    def predict(
        self,
        model: str,
        x: Any,
        *,
        names: Sequence[str] | None = None,
        min_seq: int | None = None,
        version: str | None = None,
        explain: bool = False,
        top: int | None = None,
        rows_per_request: int = rows.ROWS_PER_REQUEST,
    ) -> Steps[Any]:
        """Score one row (Predicted) or many (PredictedMany); the model does not change.

        Of a table as in `learn`, the result is a pyarrow Table with the columns score, label and
        probability, which are null for a refused row, and those of intervals or sets.
        `min_seq` waits until the state has this seq; `version` scores with the version of this
        name. `explain` also returns what each feature contributes, 20 rows a request; `top` the
        classes of largest score.
        """
        query = query_of(min_seq=min_seq, version=version, explain=explain, top=top)
        if rows.is_table(x):
            check_table(x, explain=explain or None, names=names, top=top)
            return scores_table((yield from self._predict_bodies(model, bodies_ahead(x), query)))
        if explain:
            rows_per_request = min(rows_per_request, MAX_EXPLAINED)
        if rows.is_single(x):
            nested: list[str] = []
            body = sample_line({"x": rows.row_of(x, names)}, nested=nested)
            yield from self._check_nested(model, nested)
            return (yield from self._do(_predict_call(model, JSON, body, query, Predicted)))
        lines = Next(rows.bodies_of(rows.samples_of(x, names=names), rows_per_request))
        return _joined((yield from self._predict_bodies(model, lines, query)))

    def _predict_bodies(
        self, model: str, bodies: Next, query: Mapping[str, str]
    ) -> Steps[list[PredictedMany]]:
        """Score bodies. Raises BadInput if there are no rows."""
        answers: list[PredictedMany] = []
        has_columns = False
        while (many := (yield bodies)) is not None:
            if many.nested is not None and not has_columns:
                yield from self._check_nested(model, [many.nested])
                has_columns = True
            answers.append((yield from self._predict_body(model, many.kind, many.content, query)))
        if not answers:
            raise BadInput("there are no rows to send")
        return answers

    @method
    def predict_and_remember(
        self,
        model: str,
        x: Any,
        ids: Any,
        *,
        names: Sequence[str] | None = None,
        default_label: Any = None,
        default_after_s: float | None = None,
        revise: bool = False,
    ) -> Steps[PredictedMany]:
        """Score rows, and keep them in the store under their ids until `learn_labels`.

        A row whose label does not arrive within `default_after_s` learns `default_label`; with
        `revise`, labels with `revise` may replace that one.
        """
        try:
            label = plain(default_label)
        except TypeError as wrong:
            raise BadInput(f"the default label: {wrong}") from None
        query = query_of(
            remember=True,
            # False is a label here, not an absent flag.
            default_label="false" if label is False else label,
            default_after_s=default_after_s,
            revise=revise,
        )
        samples = enumerate(rows.samples_of(x, ids=ids, names=names))
        nested: list[str] = []
        lines = b",".join(sample_line(one, row, nested) for row, one in samples)
        yield from self._check_nested(model, nested)
        body = b'{"samples":[' + lines + b"]}"
        return (yield from self._do(_predict_call(model, JSON, body, query, PredictedMany)))

    @method
    def predict_lines(
        self, model: str, lines: Sequence[bytes], *, remember: bool = False
    ) -> Steps[PredictedMany]:
        """Score rows that are JSON texts, as they are; `remember` as `predict_and_remember`."""
        body = b"[" + b",".join(lines) + b"]"
        return (yield from self._predict_body(model, JSON, body, query_of(remember=remember)))

    def _predict_piece(
        self, model: str, file: RowFile, piece: Piece, query: Mapping[str, str]
    ) -> Steps[PredictedMany | None]:
        """Score a chunk of a file; None if it has no rows."""
        try:
            return (yield from self._predict_rows(model, file, piece, query))
        except Refused as refused:
            if not refused.has_no_rows:
                raise
            return None

    def _predict_rows(
        self, model: str, file: RowFile, piece: Piece, query: Mapping[str, str]
    ) -> Steps[PredictedMany]:
        if file.kind != JSON:
            answer = yield from self._predict_body(model, file.sent_as, piece.content, query)
            for error in answer.errors or ():
                if "line" in error:
                    error["line"] += piece.line
            return answer
        # A JSON document has one row or many; so has its response.
        call = _predict_call(model, JSON, piece.content, query, dict[str, Any])
        document = yield from self._do(call)
        if "scores" in document:
            return msgspec.convert(document, PredictedMany)
        return msgspec.convert(document, Predicted).as_many()

    def _predict_body(
        self, model: str, kind: str, body: bytes, query: Mapping[str, str]
    ) -> Steps[PredictedMany]:
        """Score a body. If no row is valid, every score is None."""
        try:
            return (yield from self._do(_predict_call(model, kind, body, query, PredictedMany)))
        except Refused as refused:
            count = refused.problem.get("rejected")
            if refused.kind != "invalid-rows" or not count:
                raise
            errors = [dict(error) for error in refused.errors]
            nones: list[Any] = [None] * count
            return PredictedMany(model, 0, nones, [*nones], [*nones], rejected=count, errors=errors)


def _predict_call(
    model: str, kind: str, body: bytes, query: Mapping[str, str], answer: type[T]
) -> Call[T]:
    return Call("POST", model_path(model, "predict"), answer, query, {"content-type": kind}, body)


def _joined(answers: list[PredictedMany]) -> PredictedMany:
    """Concatenate responses to consecutive bodies; `seq` is the oldest.

    A body without a valid row has neither a seq nor probabilities of its own.
    """
    whole = answers[0]
    join_fields(answers)
    scored = [one for one in answers if one.rejected != len(one.scores)]
    seq = min((one.seq for one in scored), default=0)
    has_probabilities = all(one.probabilities is not None for one in scored)
    chances = chain.from_iterable(one.probabilities or () for one in answers)
    probabilities = list(chances) if has_probabilities else None
    for more in answers[1:]:
        for error in more.errors or ():
            error["index"] += len(whole.scores)
        # A body without a valid row has no explanations either.
        if whole.explanations or more.explanations:
            whole.explanations = [*_explanations(whole), *_explanations(more)]
        whole.scores += more.scores
        whole.labels += more.labels
        whole.rejected = (whole.rejected or 0) + (more.rejected or 0) or UNSET
        whole.errors = [*(whole.errors or ()), *(more.errors or ())][:MAX_ERRORS] or UNSET
        whole.stale = whole.stale or more.stale
        whole.age_seconds = max(whole.age_seconds or 0.0, more.age_seconds or 0.0) or None
    whole.seq, whole.probabilities = seq, probabilities
    return whole


def _explanations(one: PredictedMany) -> list[Explanation | None]:
    return list(one.explanations or [None] * len(one.scores))
