"""Routing of `dualstream consume`: each message goes to the model that it names.

Every model has its own cursor of each partition, so each row is learned once. The offset that the
group has committed is where the next process begins: all that is before it is learned. It then
skips the rows that are before the cursors of their models. A model without a cursor begins at the
batch that has its first row; if it had a cursor, at the partition's first message.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from dualstream.client import BadInput, Refused
from dualstream.consume.batch import CursorMove, Outcome, Row
from dualstream.consume.dead_letters import DeadLetter
from dualstream.consume.fields import read_field
from dualstream.consume.reader import ReaderError, lost_cursor
from dualstream.consume.rows import BadMessage, field_of
from dualstream.consume.server import ELSEWHERE, TOO_LARGE, ModelServer
from dualstream.wire.schemas import MODEL_ID

if TYPE_CHECKING:
    from dualstream.consume.kafka import KafkaReader

MAX_MODELS = 10_000
"""Models in memory; they are read again from the server."""
_VALUE = "value."


class RoutedModels:
    """Many models, as the one Server of the loop.

    route    field of the message with the model's id: key, headers.NAME or value.COLUMN
    models   makes the model of an id
    offsets  the committed offsets of the reader's group
    create   creates the model of an id; None if messages of unknown models are dead letters
    log      takes a line when a model has lost the rows of a partition
    """

    def __init__(
        self,
        route: str,
        models: Callable[[str], ModelServer],
        offsets: "KafkaReader",
        create: Callable[[str], object] | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._route, self._offsets, self._create, self._log = route, offsets, create, log
        self._make, self._models = models, dict[str, ModelServer]()
        self._cursors: dict[tuple[str, str], int | None] = {}
        """Cursor of each model and source, as last known; None if the model has not learned from
        the source. All are kept: a model whose cursor is lost is no new one."""
        self._batch: tuple[str, int, int] | None = None
        self._done: set[str] = set()
        """Models that have learned their rows of the batch."""
        self._taken: dict[str, dict[str, None]] = {}
        """Models of whose rows a step has taken some, by source: their cursors have to move."""
        self._outcome = Outcome()

    def sources(self) -> dict[str, int]:
        """Where the partitions begin: the committed offsets."""
        return self._offsets.committed()

    def set_source(self, source: str, offset: int) -> None:
        """Commit an offset."""
        self._offsets.commit(source, offset)

    def refusal(self, rows: Sequence[Row]) -> None:
        """Unknown: each model refuses its own."""

    def learn(self, move: CursorMove, rows: Sequence[Row]) -> Outcome:
        """Learn rows, model by model, then commit the end. Resumes after a failure.

        Raises Refused of a kind in ELSEWHERE if a model's cursor has moved back or is lost, after
        an earlier offset is committed: the partition must be read again from there.
        """
        source = move.source
        if self._batch != move[:3]:
            self._batch, self._done, self._outcome = move[:3], set(), Outcome()
        groups = self._by_model(rows)
        for model in [*groups, *self._taken.get(source, ())]:
            if model not in self._done:
                group = groups.get(model, [])
                reason = self._attempt(model, source, partial(self._learn, model, move, group))
                if reason is not None:
                    self._outcome.refuse(group, reason)
                self._done.add(model)
        self._offsets.commit(source, move.end)
        self._taken.pop(source, None)
        if len(self._models) > MAX_MODELS:
            self._models.clear()
        self._batch = None
        return self._outcome

    def each(
        self, rows: Sequence[Row], call: Callable[[ModelServer, Sequence[Row]], None]
    ) -> tuple[int, list[DeadLetter]]:
        """Call with each model and its rows of a partition that its cursor has not passed.

        Returns the number of the rows that are passed, and dead letters of rows without a model.
        `call` is repeated if its model does not exist and is created.
        """
        passed, letters = 0, list[DeadLetter]()
        for model, group in self._by_model(rows).items():
            source = group[0][0].source
            reason = self._attempt(model, source, partial(self._take, model, source, group, call))
            if reason is None:
                passed += self._passed(model, source, group)
            else:
                letters += [DeadLetter(message, reason) for message, _ in group]
        return passed, letters

    def _take(
        self,
        model: str,
        source: str,
        rows: Sequence[Row],
        call: Callable[[ModelServer, Sequence[Row]], None],
    ) -> None:
        left = rows[self._passed(model, source, rows) :]
        if left:
            call(self._model(model), left)
            self._taken.setdefault(source, {})[model] = None

    def _by_model(self, rows: Sequence[Row]) -> dict[str, list[Row]]:
        """Each model's rows. Rows without a model have the id of their reason."""
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(self._model_of(row), []).append(row)
        return groups

    def _model_of(self, row: Row) -> str:
        """Id of the row's model; a text that is no id says what is wrong with the row."""
        message, line = row
        if self._route.startswith(_VALUE):
            text = read_field(line, self._route.removeprefix(_VALUE)) or b"null"
            try:
                value = msgspec.json.decode(text, type=str | int | None)
            except msgspec.ValidationError:  # another type, or a number that is out of range
                return self._no_id(text.decode())
        else:
            try:
                value = field_of(message, self._route)
            except BadMessage as bad:
                return f"{bad} "
        if value is None:
            return f"the message has no {self._route}, which names its model"
        return str(value) if MODEL_ID.fullmatch(str(value)) else self._no_id(str(value))

    def _no_id(self, value: str) -> str:
        return f"{self._route} is no id of a model: {value[:80]!r}"

    def _attempt(self, model: str, source: str, do: Callable[[], None]) -> str | None:
        """Do it, also with a model that has to be created first. Returns why there is no model."""
        if not MODEL_ID.fullmatch(model):
            return model.strip()
        try:
            do()
        except Refused as refused:
            if refused.kind == "unknown-model":
                self._models.pop(model, None)
                if self._create is None:
                    self._cursors.pop((model, source), None)
                    return refused.detail
                self._create(model)
                return self._attempt(model, source, do)
            if refused.kind == "nothing-to-observe":
                return refused.detail
            if refused.kind in ELSEWHERE:
                self._move_back(model, source, refused)
                self._cursors.pop((model, source), None)  # read again from the server
            raise
        return None

    def _learn(self, model: str, move: CursorMove, rows: Sequence[Row]) -> None:
        """Learn the rows of one model that are not before its cursor, which moves to the end."""
        cursor = self._cursor(model, move.source)
        passed = self._passed(model, move.source, rows)
        start = move.start if cursor is None else cursor
        if start < move.end:
            self._post(model, move._replace(start=start), rows[passed:])
            self._cursors[model, move.source] = move.end
        self._outcome.duplicates += passed

    def _move_back(self, model: str, source: str, refused: Refused) -> None:
        """Commit the cursor of a model whose store has lost rows, so that they are read again.

        Without a cursor, commit the first offset of the log. Raises OSError.
        """
        cursor, start = refused.problem.get("cursor"), self._batch[1] if self._batch else 0
        loss = ""
        if refused.kind == "unknown-source":
            bounds = self._offsets.bounds(source)
            if bounds is None:
                raise OSError(f"{source}: the begin of the log is unknown")
            cursor, loss = bounds.first, lost_cursor(self._cursor(model, source), bounds)
        if isinstance(cursor, int) and cursor < start:
            self._offsets.commit(source, cursor)
        if loss:
            self._log(f"{source}: model {model}: {loss}")
            # Other models may have lost theirs, too: all begin at the first message then.
            self._cursors = {one: at for one, at in self._cursors.items() if one[1] != source}

    def _cursor(self, model: str, source: str) -> int | None:
        if (model, source) not in self._cursors:
            cursor = self._model(model).sources().get(source)
            if cursor is not None:
                self._check_cursor(model, source, cursor)
            self._cursors[model, source] = cursor
        return self._cursors[model, source]

    def _check_cursor(self, model: str, source: str, cursor: int) -> None:
        """Raise ReaderError for a cursor after the end: it would skip rows that are not learned."""
        try:
            self._offsets.check_cursor(source, cursor)
        except ReaderError as outside:
            raise ReaderError(
                f"model {model}: {outside}; set it to the offset at which the model continues:"
                f" dualstream sources {model} --set {source}=OFFSET"
            ) from None

    def _passed(self, model: str, source: str, rows: Sequence[Row]) -> int:
        """Number of the first rows that are before the model's cursor."""
        cursor = self._cursor(model, source)
        return 0 if cursor is None else sum(message.offset < cursor for message, _ in rows)

    def _model(self, model: str) -> ModelServer:
        if model not in self._models:
            self._models[model] = self._make(model)
        return self._models[model]

    def _post(self, model: str, move: CursorMove, rows: Sequence[Row]) -> None:
        """Learn rows as one append, or as several if the server says it is too large."""
        move = move._replace(first=self._cursor(model, move.source) is None)
        try:
            self._outcome.add(self._model(model).learn(move, rows))
        except Refused as refused:
            if refused.kind not in TOO_LARGE:
                raise
            if len(rows) > 1:
                middle = len(rows) // 2
                cut = rows[middle][0].offset
                self._post(model, move._replace(end=cut), rows[:middle])
                self._cursors[model, move.source] = cut
                self._post(model, move._replace(start=cut), rows[middle:])
            else:
                self._outcome.refuse(rows, refused.detail)
                self._model(model).learn(move, ())


def check_route(route: str) -> None:
    """Raise BadInput unless this is key, headers.NAME or value.COLUMN."""
    owner, _, name = route.partition(".")
    if route != "key" and not (owner in ("headers", "value") and name):
        raise BadInput(f"--route must be key, headers.NAME or value.COLUMN, got {route!r}")
