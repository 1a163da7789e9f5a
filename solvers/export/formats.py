"""Registry of export formats."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dualstream.solvers.errors import NotExpressible
from dualstream.solvers.export.source import Source
from dualstream.solvers.protocols.served_form import numbers_in

MAX_NUMBERS = 1 << 24
"""Maximum numbers of an exported model: 128 MiB, and twice as much as text."""


class MissingExtra(Exception):
    """A required package is not installed; the message names the extra."""


@dataclass(frozen=True, slots=True)
class Format:
    """Public name of a format, and its writer."""

    media_type: str
    suffix: str
    module: str
    needs: str | None = None
    """Package that the format requires; the extra has the same name."""

    def write(self, source: Source) -> bytes:
        """Raises NotExpressible, MissingExtra."""
        numbers = numbers_in(source.form)
        if numbers > MAX_NUMBERS:
            raise NotExpressible(f"it has {numbers:,} numbers; the maximum is {MAX_NUMBERS:,}")
        if self.needs is not None:
            try:
                importlib.import_module(self.needs)
            except ImportError:
                detail = f"this format needs pip install 'dualstream[{self.needs}]'"
                raise MissingExtra(detail) from None
        module: Any = importlib.import_module(self.module)
        write: Callable[[Source], bytes] = module.write
        return write(source)


_PACKAGE = "dualstream.solvers.export"
FORMATS: dict[str, Format] = {
    "json": Format("application/json", "json", f"{_PACKAGE}.json"),
    "onnx": Format("application/octet-stream", "onnx", f"{_PACKAGE}.onnx_model", needs="onnx"),
    "sklearn-coef": Format("application/json", "coef.json", f"{_PACKAGE}.sklearn_coef"),
    "vw": Format("application/octet-stream", "vw", f"{_PACKAGE}.vw"),
    "xgboost": Format("application/json", "xgboost.json", f"{_PACKAGE}.xgboost"),
}
