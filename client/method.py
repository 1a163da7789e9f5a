"""Methods of `Client` and `AsyncClient`, each written once.

A method returns one `Call`, or is a generator of actions (`Steps`) if it needs several requests or
handles refusals. `Client` performs the actions in blocking calls, `AsyncClient` awaits them.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from dualstream.client.arrow_tables import bodies_of_table
from dualstream.client.calls import JSON, Call, Next, Steps, model_path, send
from dualstream.client.errors import BadInput
from dualstream.client.resumable_files import read_ahead
from dualstream.client.rows import has_stream
from dualstream.wire.responses import Model

P = ParamSpec("P")
T = TypeVar("T")

JSON_BODY = {"content-type": JSON}


class Blocking:
    """Base class of `Client`: its methods return results."""


class Awaited:
    """Base class of `AsyncClient`: its methods are coroutine functions."""


class method(Generic[P, T]):
    """Decorator of a method of both clients, which states its type on each of them.

    `clients.py` replaces it by a function on `Client` and by a coroutine function on `AsyncClient`.
    """

    def __init__(self, steps: Callable[Concatenate[Any, P], Call[T] | Steps[T]]) -> None:
        self.steps = steps

    if TYPE_CHECKING:

        @overload
        def __get__(self, client: Blocking, owner: type) -> Callable[P, T]: ...
        @overload
        def __get__(self, client: Awaited, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
        @overload
        def __get__(self, client: None, owner: type) -> Callable[..., Any]: ...
        def __get__(self, client: Any, owner: type) -> Any: ...


class Methods:
    """Base class of the classes of methods."""

    _patience_s: float
    _proxy: str
    """URL of the proxy of all requests, without its password; empty without one."""

    def _do(self, call: Call[T]) -> Steps[T]:
        return send(call, self._patience_s, self._proxy)

    def _check_nested(self, model: str, nested: Sequence[str]) -> Steps[None]:
        """Raise BadInput if rows have lists, objects or times, and the model has no `columns`.

        Without `columns`, a time would be a category of its own.
        """
        if not nested:
            return
        answer = yield from self._do(Call[Model]("GET", model_path(model), Model))
        if answer.spec.get("columns") is None:
            advice = "convert it, or create the model with `columns`"
            if "feature 'x' is" in nested[0]:
                advice = 'if these are samples {"x": ..., "y": ...}, learn them by `learn_iter`'
            raise BadInput(
                f"{nested[0]}; model {model!r} has no `columns`, so a feature must be a number,"
                f" bool or text: {advice}"
            )


def check_table(x: Any, **others: Any) -> None:
    """Raise BadInput unless this is a table, without arguments for rows of other types."""
    if not has_stream(x):
        raise BadInput(
            "the name of a source needs a table with the Arrow C stream interface;"
            " give other rows a Source(name, from_, to)"
        )
    for name, value in others.items():
        if value is not None:
            why = "; its label, weight and id are columns" * (name in ("y", "weight", "ids"))
            raise BadInput(f"a table takes no argument {name!r}{why}")


def bodies_ahead(table: Any) -> Next:
    """The bodies of a table, each made while the one before it is sent."""
    return Next(read_ahead(bodies_of_table(table)), reads_file=True)
