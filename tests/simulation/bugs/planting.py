"""Planting faults: functions that replace the service's own."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True)
class Bug:
    """Replacements: (class or module, name, function)."""

    patches: Sequence[tuple[Any, str, Callable[..., Any]]]

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for owner, name, planted in self.patches:
                standing_in = _standing_in(planted, getattr(owner, name))
                stack.enter_context(patch.object(owner, name, standing_in))
            yield


def _standing_in(planted: Callable[..., Any], true: Any) -> Any:
    if isinstance(true, property):
        return property(lambda self: planted(true.fget, self))
    return lambda *args, **named: planted(true, *args, **named)


def nothing(true: Any, *args: Any, **named: Any) -> None:
    """The check is not made."""
