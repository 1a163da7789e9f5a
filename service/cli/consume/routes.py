"""Routing of `dualstream consume`: each message is learned by the model that it names.

Every model has its own cursor of each partition, so each row is learned once. The offset that the
group has committed is where the next process begins: all that is before it is learned. It then
skips the rows that are before the cursors of their models.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from dualstream.client import BadInput, Refused
from dualstream.service.cli.consume.batch import Row
from dualstream.service.cli.consume.dead_letters import reasons
from dualstream.service.cli.consume.fields import read_field
from dualstream.service.cli.consume.rows import BadMessage, field_of
from dualstream.service.cli.consume.server import TOO_LARGE
from dualstream.wire.schemas import MODEL_ID, Duplicate, Learned

MAX_CURSORS = 10_000
"""Cursors in memory; they are read again from the server."""
_VALUE = "value."


class Model(Protocol):
    """A model of a server. Methods raise Unreachable and Refused, without retries."""

    def sources(self) -> dict[str, int]:
        """The model's cursors."""
        ...

    def learn(
        self, source: str, start: int, end: int, rows: Sequence[Row], lag: int | None
    ) -> Learned:
        """Learn rows and move the cursor from `start` to `end`."""
        ...


class Offsets(Protocol):
    """Committed offsets of a consumer group. Methods raise OSError."""

    def committed(self) -> dict[str, int]:
        """Committed offset of each assigned partition that has one."""
        ...

    def commit(self, source: str, offset: int) -> None:
        """Commit the offset at which the next process begins."""
        ...


class RoutedModels:
    """Many models, as the one Server of the loop.

    route    field of the message with the model's id: key, headers.NAME or value.COLUMN
    models   the model of an id
    create   creates the model of an id; None if messages of unknown models are dead letters
    """

    def __init__(
        self,
        route: str,
        models: Callable[[str], Model],
        offsets: Offsets,
        create: Callable[[str], object] | None = None,
    ) -> None:
        self._route, self._models, self._offsets, self._create = route, models, offsets, create
        self._cursors: dict[tuple[str, str], int | None] = {}
        """Cursor of each model and source; None if the model has not learned from the source."""
        self._batch: tuple[str, int, int] | None = None
        self._done: set[str] = set()
        """Models that have learned their rows of the batch."""
        self._answer = _empty(0)

    def sources(self) -> dict[str, int]:
        """Where the partitions begin: the committed offsets."""
        return self._offsets.committed()

    def set_source(self, source: str, offset: int) -> None:
        """Commit an offset."""
        self._offsets.commit(source, offset)

    def learn(
        self, source: str, start: int, end: int, rows: Sequence[Row], lag: int | None
    ) -> Learned:
        """Learn rows, model by model, then commit `end`. Resumes after a failure.

        Raises Refused `source-moved` if a model's cursor has moved back, after the cursor is
        committed: the partition must be read again from there.
        """
        if self._batch != (source, start, end):
            self._batch, self._done, self._answer = (source, start, end), set(), _empty(len(rows))
        for model, places in self._by_model(rows).items():
            if model not in self._done:
                self._learn(model, source, end, [(place, rows[place]) for place in places], lag)
                self._done.add(model)
        self._offsets.commit(source, end)
        if len(self._cursors) > MAX_CURSORS:
            self._cursors.clear()
        answer, self._batch = self._answer, None
        return answer

    def _by_model(self, rows: Sequence[Row]) -> dict[str, list[int]]:
        """Indices of each model's rows. Rows without a model have the id of their reason."""
        found: dict[str, list[int]] = {}
        for place, row in enumerate(rows):
            found.setdefault(self._model_of(row), []).append(place)
        return found

    def _model_of(self, row: Row) -> str:
        """Id of the row's model; a text that is no id says what is wrong with the row."""
        message, line = row
        if self._route.startswith(_VALUE):
            given = read_field(line, self._route.removeprefix(_VALUE))
            value = None if given is None else msgspec.json.decode(given)
            if isinstance(value, int) and not isinstance(value, bool):
                value = str(value)
        else:
            try:
                value = field_of(message, self._route)
            except BadMessage as bad:
                return f"{bad} "
        if value is None:
            return f"the message has no {self._route}, which names its model"
        is_id = isinstance(value, str) and MODEL_ID.fullmatch(value)
        return str(value) if is_id else f"{self._route} is no id of a model: {str(value)[:80]!r}"

    def _learn(
        self, model: str, source: str, end: int, given: Sequence[tuple[int, Row]], lag: int | None
    ) -> None:
        """Learn the rows of one model that are not before its cursor."""
        if not MODEL_ID.fullmatch(model):
            self._refuse([place for place, _ in given], model.strip())
            return
        try:
            cursor = self._cursor(model, source)
            rows = [one for one in given if cursor is None or one[1][0].offset >= cursor]
            if rows:
                first = rows[0][1][0].offset if cursor is None else cursor
                self._post(model, source, first, end, rows, lag)
                self._cursors[model, source] = end
            self._known([place for place, _ in given[: len(given) - len(rows)]])
        except Refused as refused:
            self._cursors.pop((model, source), None)
            if refused.kind == "unknown-model" and self._create is None:
                self._refuse([place for place, _ in given], refused.detail)
            elif refused.kind == "unknown-model" and self._create is not None:
                self._create(model)
                self._learn(model, source, end, given, lag)
            else:
                if refused.kind == "source-moved":
                    self._move_back(source, refused)
                raise

    def _move_back(self, source: str, refused: Refused) -> None:
        """Commit the cursor of a model whose store has lost rows, so that they are read again."""
        cursor, start = refused.problem.get("cursor"), self._batch[1] if self._batch else 0
        if isinstance(cursor, int) and cursor < start:
            self._offsets.commit(source, cursor)

    def _cursor(self, model: str, source: str) -> int | None:
        if (model, source) not in self._cursors:
            self._cursors[model, source] = self._models(model).sources().get(source)
        return self._cursors[model, source]

    def _post(
        self,
        model: str,
        source: str,
        first: int,
        end: int,
        rows: Sequence[tuple[int, Row]],
        lag: int | None,
    ) -> None:
        """Learn rows as one append, or as several if the server says it is too large."""
        posted, places = [row for _, row in rows], [place for place, _ in rows]
        try:
            learned = self._models(model).learn(source, first, end, posted, lag)
        except Refused as refused:
            if refused.kind not in TOO_LARGE:
                raise
            if len(rows) > 1:
                middle = len(rows) // 2
                cut = posted[middle][0].offset
                self._post(model, source, first, cut, rows[:middle], lag)
                self._cursors[model, source] = cut
                self._post(model, source, cut, end, rows[middle:], lag)
            else:
                self._refuse(places, refused.detail)
                self._models(model).learn(source, first, end, (), lag)
            return
        self._count(places, learned)

    # -- the answer --------------------------------------------------------------------------------

    def _count(self, places: Sequence[int], learned: Learned) -> None:
        """Add a model's answer to that of the batch."""
        answer = self._answer
        errors = reasons(learned.errors or ())
        for index, reason in errors:
            self._add_error(places[index], reason)
        answer.learned = (answer.learned or 0) + (
            learned.count if learned.learned is None else learned.learned
        )
        answer.rejected = (answer.rejected or 0) + (learned.rejected or 0)
        if learned.duplicate and not learned.duplicates:
            bad = {index for index, _ in errors}
            self._known([place for index, place in enumerate(places) if index not in bad])
        self._known([places[one.index] for one in learned.duplicates or ()])
        assert isinstance(answer.scores, list)
        for place, score in zip(places, learned.scores or (), strict=False):
            answer.scores[place] = score

    def _refuse(self, places: Sequence[int], reason: str) -> None:
        for place in places:
            self._add_error(place, reason)
        self._answer.rejected = (self._answer.rejected or 0) + len(places)

    def _add_error(self, place: int, reason: str) -> None:
        assert isinstance(self._answer.errors, list)
        self._answer.errors.append({"index": place, "reason": reason})

    def _known(self, places: Sequence[int]) -> None:
        """Rows that were learned before."""
        assert isinstance(self._answer.duplicates, list)
        self._answer.duplicates += [Duplicate(place, None) for place in places]


def check_route(route: str) -> None:
    """Raise BadInput unless this is key, headers.NAME or value.COLUMN."""
    owner, _, name = route.partition(".")
    if route != "key" and not (owner in ("headers", "value") and name):
        raise BadInput(f"--route must be key, headers.NAME or value.COLUMN, got {route!r}")


def _empty(rows: int) -> Learned:
    """The answer to a batch, to which those of the models are added."""
    nones: list[float | None] = [None] * rows
    return Learned("", 0, 0, 0, None, None, 0, False, [], nones, [])
