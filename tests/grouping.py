"""Many small cases as one test: pytest and xdist take 2 ms for each test."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def each(
    names: str | Sequence[str], cases: Iterable[Any], ids: object = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator like `pytest.mark.parametrize`, but the cases run one after the other in one test.

    A failure names its case, and the cases after it do not run. Fixtures are shared by all cases.
    """
    fields = names.replace(" ", "").split(",") if isinstance(names, str) else list(names)
    rows = [dict(zip(fields, case if len(fields) > 1 else [case], strict=True)) for case in cases]
    assert rows

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            for row in rows:
                try:
                    test(**fixtures, **row)
                except BaseException as error:
                    error.add_note(f"in the case {row}")
                    raise

        signature = inspect.signature(test)
        others = [one for name, one in signature.parameters.items() if name not in fields]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate
