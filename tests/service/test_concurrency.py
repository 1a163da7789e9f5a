"""Threads that do one thing after another, and tasks that their callers may leave."""

import asyncio
import gc
import threading

import pytest

from dualstream.service.concurrency import background_task, run_in_thread, run_to_completion


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
async def test_work_in_the_shared_thread_is_done_one_after_the_other():
    under_way, most, threads = 0, 0, set()

    def work(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        threads.add(threading.get_ident())
        threading.Event().wait(0.001)
        under_way -= 1
        if number == 3:
            raise ValueError(number)
        return number

    told = await asyncio.gather(*(run_in_thread(work, n) for n in range(8)), return_exceptions=True)
    assert most == 1 and threading.get_ident() not in threads
    assert [n for n in told if isinstance(n, int)] == [0, 1, 2, 4, 5, 6, 7]
    assert isinstance(told[3], ValueError)


@pytest.mark.anyio
async def test_work_goes_on_when_its_caller_is_cancelled():
    begun, free, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await free.wait()
        done.set()

    caller = asyncio.create_task(run_to_completion(work()))
    await begun.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    free.set()
    async with asyncio.timeout(5):
        await done.wait()


@pytest.mark.anyio
async def test_an_error_that_nobody_awaits_is_not_logged_and_one_that_is_awaited_is_raised():
    logged = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))

    async def fail() -> None:
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        await run_to_completion(fail())
    task = background_task(fail())
    await asyncio.wait([task])
    del task
    gc.collect()
    assert logged == []
