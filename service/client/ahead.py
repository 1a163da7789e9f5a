"""An iterator that works ahead in a thread: what is next is made while what is there is used."""

from collections.abc import Generator, Iterator
from contextlib import suppress
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import Any, TypeVar

T = TypeVar("T")
# How long a thread that has nothing to do may outlive who wanted what it made.
_LOOK_S = 0.1


def made_ahead(items: Iterator[T], most: int = 1) -> Generator[T]:
    """The items, in their order; besides the one in use `most` wait and one more is being made.

    Raises, in its place, what making them raises. Who closes it early leaves a thread that ends
    with the item that it is at.
    """
    ready: Queue[tuple[bool, Any]] = Queue(most)
    is_closed = Event()
    thread = Thread(target=_make, args=(items, ready, is_closed), daemon=True)
    thread.start()
    try:
        while True:
            is_item, found = ready.get()
            if is_item:
                yield found
            elif found is None:
                return
            else:
                raise found
    finally:
        is_closed.set()
        with suppress(Empty):
            while True:
                ready.get_nowait()


def _make(items: Iterator[Any], ready: "Queue[tuple[bool, Any]]", is_closed: Event) -> None:
    end: Any = None
    try:
        for item in items:
            if not _put(ready, (True, item), is_closed):
                return
    except BaseException as error:
        end = error
    finally:
        if isinstance(items, Generator):
            items.close()
    _put(ready, (False, end), is_closed)


def _put(ready: "Queue[tuple[bool, Any]]", what: tuple[bool, Any], is_closed: Event) -> bool:
    """Whether somebody may still take it."""
    while not is_closed.is_set():
        with suppress(Full):
            ready.put(what, timeout=_LOOK_S)
            return True
    return False
