"""A model of a server, by the public Python client: its cursors, and batches that move them."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol, Self

from dualstream.client import BadInput, Client, Learned, PredictedMany, Refused, Source
from dualstream.consume.batch import CursorMove, Outcome, Row, outcome_of
from dualstream.consume.dead_letters import DeadLetter, reasons
from dualstream.consume.entries import EntryLines, entry_cursor, entry_offset
from dualstream.consume.fields import RowFields

TOO_LARGE = ("body-too-large", "too-many-rows", "malformed-body")
"""Problems of a body as a whole: a smaller one may pass."""
ELSEWHERE = ("source-moved", "unknown-source")
"""Problems of a batch that is not at its source's cursor: read the cursor, and begin there."""


class Server(Protocol):
    """One model of a server, or many. Methods raise Unreachable and Refused, without retries."""

    def sources(self) -> dict[str, int]:
        """The cursors."""
        ...

    def learn(self, move: CursorMove, rows: Sequence[Row]) -> Outcome:
        """Learn rows and move the cursor."""
        ...

    def set_source(self, source: str, offset: int) -> None:
        """Set the cursor."""
        ...

    def refusal(self, rows: Sequence[Row]) -> str | None:
        """Why the model refuses all of these rows; None if it takes one. Learns nothing."""
        ...

    def each(
        self, rows: Sequence[Row], call: "Callable[[ModelServer, Sequence[Row]], None]"
    ) -> tuple[int, list[DeadLetter]]:
        """Call with each model and its rows, without those that its cursor has passed.

        Returns the number of the latter, and dead letters of rows without a model.
        """
        ...


class ModelServer:
    """One model of a server. Methods raise Unreachable and Refused, without retries.

    client    with a patience of 0: the loop itself waits, because it must stay in its group
    observes  are rows observed instead of learned? They need no label then
    """

    remembers = True
    """Are scored rows remembered? `Predictions` clears it if the model refuses."""

    def __init__(self, client: Client, model: str, observes: bool = False) -> None:
        self._client, self._model, self._observes = client, model, observes

    def each(
        self, rows: Sequence[Row], call: Callable[[Self, Sequence[Row]], None]
    ) -> tuple[int, list[DeadLetter]]:
        """Call with this model and all rows, as `RoutedModels` does for many."""
        if rows:
            call(self, rows)
        return 0, []

    @cached_property
    def fields(self) -> RowFields:
        """The names of the ids and labels of the model's rows."""
        return RowFields(self._client.get(self._model).spec)

    def sources(self) -> dict[str, int]:
        """Offsets of the model's cursors. Raises BadInput for a server without sources."""
        try:
            cursors = self._client.sources(self._model)
        except Refused as refused:
            if refused.kind == "not-found":
                raise BadInput("the server is too old: it has no sources; upgrade it") from None
            raise
        offsets = {one.name: self._offset(one.name, one.next) for one in cursors}
        return {name: offset for name, offset in offsets.items() if offset is not None}

    def learn(self, move: CursorMove, rows: Sequence[Row]) -> Outcome:
        """Learn or observe rows and move the cursor, in one step.

        Raises BadInput if the cursor was set to something that is no offset.
        """
        lines = b"\n".join(line for _, line in rows)
        try:
            answer = self._post(lines, self._batch(move))
        except Refused as refused:
            cursor: Any = refused.problem.get("cursor")
            if refused.kind == "source-moved" and self._offset(move.source, cursor) is None:
                raise BadInput(
                    f"the cursor of {move.source} is {cursor!r}, not an offset; set it to the next"
                    f" one: dualstream sources {self._model} --set {move.source}=OFFSET"
                ) from None
            raise
        outcome = outcome_of(rows, answer)
        if self._observes:
            outcome.learned = answer.count
        return outcome

    def _post(self, lines: bytes, batch: Source) -> Learned:
        if self._observes:
            return self._client.observe_lines(self._model, lines, source=batch)
        return self._client.learn_lines(self._model, lines, source=batch, scores=True)

    def refusal(self, rows: Sequence[Row]) -> str | None:
        """Why the model refuses all of these rows; None if it takes one. Learns nothing."""
        lines = [line for _, line in rows]
        try:
            if self._observes:
                self.predict(lines, remember=False)  # which reads the same columns
                return None
            refused = self._client.check_lines(self._model, lines)
        except Refused as error:
            # Other refusals are of the request, which `learn` handles.
            refused = error if error.kind == "invalid-rows" else None
        return None if refused is None else reasons(refused.errors)[0][1]

    def predict(self, lines: Sequence[bytes], remember: bool) -> PredictedMany:
        """Score rows; store them with their scores if `remember`."""
        return self._client.predict_lines(self._model, lines, remember=remember)

    def label(self, lines: Sequence[bytes]) -> Learned:
        """Learn late labels, each an object with `id` and `y`."""
        return self._client.label_lines(self._model, lines)

    def set_source(self, source: str, offset: int) -> None:
        """Set the cursor."""
        self._client.set_source(self._model, source, self._cursor(offset))

    def _cursor(self, offset: int) -> int | str:
        return offset

    def _offset(self, source: str, cursor: int | str) -> int | None:
        """The offset of a cursor; None for a cursor of another kind."""
        return cursor if isinstance(cursor, int) else None

    def _batch(self, move: CursorMove) -> Source:
        return Source(move.source, move.start, move.end - 1, lag=move.lag, first=move.first)


class EntryServer(ModelServer):
    """As `ModelServer`, for one Redis stream, whose cursors are entry ids."""

    def __init__(
        self, client: Client, model: str, source: str, lines: EntryLines, observes: bool = False
    ) -> None:
        super().__init__(client, model, observes)
        self._source, self._lines = source, lines

    def sources(self) -> dict[str, int]:
        """As of `ModelServer`; reads the specification for the lines, too."""
        self._lines.adapt(self._client.get(self._model).spec)
        return super().sources()

    def _cursor(self, offset: int) -> str:
        return entry_cursor(offset)

    def _offset(self, source: str, cursor: int | str) -> int | None:
        return entry_offset(source, cursor) if source == self._source else None

    def _batch(self, move: CursorMove) -> Source:
        start, end = entry_cursor(move.start), entry_cursor(move.end)
        return Source(move.source, start, next=end, lag=move.lag, first=move.first)
