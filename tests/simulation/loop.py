"""One clock, one source of chance, and an event loop for each process; no threads.

Within a process callbacks run in their order, as asyncio promises. Which process makes the next
step, and whether time passes before, is chance: a process may be slow for as long as it likes.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from math import inf
from random import Random
from typing import Any

MAX_STEPS = 50_000
WAITS = 0.2
"""How often time passes although some task is ready."""
THREAD_S = (0.001, 0.001, 0.02)
"""What a thread's work takes at most, in some schedules more than in others."""


class Gone(Exception):
    """The worker died or the client left: no answer will come."""


class Stuck(Exception):
    """No task is ready, or tasks run for ever."""


class Scheduler:
    """Makes one step after the other, in an order that depends on nothing but the seed."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.thread_s = self.chance.choice(THREAD_S)
        self.now = 0.0
        self.steps = 0
        self.loops: list[Loop] = []
        self.running: Loop | None = None
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbered = 0

    def at(self, delay: float, callback: Callable[..., None], *args: Any) -> None:
        """Call back once the clock has moved on by `delay`."""
        self._numbered += 1
        heapq.heappush(self._events, (self.now + delay, self._numbered, callback, args))

    def run(self, main: "asyncio.Future[Any]") -> None:
        """Go on until `main` is done. Raises Stuck."""
        try:
            self._run(main)
        finally:
            self.enter(None)

    def enter(self, loop: "Loop | None") -> None:
        """Whose step it is, as asyncio has to know."""
        self.running = loop
        asyncio._set_running_loop(loop)

    def _run(self, main: "asyncio.Future[Any]") -> None:
        random, events, loops = self.chance.random, self._events, self.loops
        while not main.done():
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise Stuck(f"still busy after {MAX_STEPS} steps")
            ready = [loop for loop in loops if loop.ready]
            if ready and not (events and random() < WAITS):
                ready[int(random() * len(ready))].step()
            elif events:
                self._pass_time()
            else:
                raise Stuck("no task can continue")

    def _pass_time(self) -> None:
        self.now, _, callback, args = heapq.heappop(self._events)
        callback(*args)


class Timer:
    """What `call_later` returns."""

    __slots__ = ("callback", "args", "loop")

    def __init__(self, loop: "Loop", callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.loop, self.callback, self.args = loop, callback, args

    def cancel(self) -> None:
        self.callback = _nothing

    def ring(self) -> None:
        self.loop.call_soon(self.callback, *self.args)


def _nothing(*_: Any) -> None:
    pass


class Loop(asyncio.AbstractEventLoop):
    """The event loop of one process. Context variables are not kept apart: nothing here has any."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.ready: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self.tasks: list[asyncio.Task[Any]] = []
        self.is_dying = self.is_dead = False
        scheduler.loops.append(self)

    def step(self) -> None:
        callback, args = self.ready.popleft()
        if self.scheduler.running is not self:
            self.scheduler.enter(self)
        callback(*args)

    def kill(self) -> None:
        """Cancel every task where it stands; nothing of this process happens afterwards."""
        self.is_dying = True
        running = self.scheduler.running
        for task in self.tasks:
            task.cancel()
        while self.ready:
            self.step()
        self.scheduler.enter(running)
        self.is_dead = True
        self.scheduler.loops.remove(self)

    def failed_tasks(self) -> list[BaseException]:
        """Errors that no task has awaited."""
        return [
            task.exception()  # type: ignore[misc]
            for task in self.tasks
            if task.done() and not task.cancelled() and task._log_traceback  # type: ignore[attr-defined]
        ]

    # -- what asyncio asks of a loop -------------------------------------------------------------

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        if not self.is_dead:
            self.ready.append((callback, args))

    call_soon_threadsafe = call_soon

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> Any:
        timer = Timer(self, callback, args)
        if delay < inf:
            self.scheduler.at(delay, timer.ring)
        return timer

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return self.call_later(max(0.0, when - self.scheduler.now), callback, *args)

    def time(self) -> float:
        return self.scheduler.now

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **_: Any) -> "asyncio.Task[Any]":
        task = asyncio.Task(coro, loop=self)
        self.tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, function: Any, *args: Any) -> Any:
        """The thread's work is done in one piece, some time later, also if its waiter is gone."""
        future = self.create_future()
        delay = self.scheduler.chance.random() * self.scheduler.thread_s
        self.scheduler.at(delay, self._in_thread, future, function, args)
        return future

    def _in_thread(self, future: "asyncio.Future[Any]", function: Any, args: Any) -> None:
        if self.is_dead:
            return
        try:
            result = function(*args)
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """`failed_tasks` tells, and at a time that does not depend on the garbage collector."""

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return self.is_dead
