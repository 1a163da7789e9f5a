"""References to named tuples: kernels pass one pointer instead of all fields.

numba passes an array as seven numbers. A call with the arrays of flat rows took longer than what
most kernels do.
"""

from typing import Any

from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, models, register_model

from dualstream.solvers.jit import DISABLED, types


class Reference(types.Type):  # type: ignore[misc]
    """numba's type of a reference to a named tuple; its attributes are the tuple's fields."""

    def __init__(self, of: Any) -> None:
        self.of = of
        super().__init__(f"reference to {of}")


@register_model(Reference)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, of_type: Any) -> None:
        kind = manager[of_type.of].get_value_type().as_pointer()
        super().__init__(manager, of_type, kind)  # type: ignore[no-untyped-call]


@infer_getattr
class _Fields(AttributeTemplate):
    key = Reference

    def generic_resolve(self, of_type: Any, name: str) -> Any:  # type: ignore[override]
        fields = of_type.of.fields
        return of_type.of.types[fields.index(name)] if name in fields else None


@lower_getattr_generic(Reference)  # type: ignore[no-untyped-call,untyped-decorator]
def _field(context: Any, builder: Any, of_type: Any, reference: Any, name: str) -> Any:
    at = of_type.of.fields.index(name)
    field = cgutils.gep_inbounds(builder, reference, 0, at)  # type: ignore[no-untyped-call]
    return builder.load(field)


def _reference_to(typing: Any, fields: Any) -> Any:
    """A reference to the tuple, valid until the kernel that makes it returns."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return cgutils.alloca_once_value(  # type: ignore[no-untyped-call]
            builder, arguments[0]
        )

    return Reference(fields)(fields), generate


def _itself(fields: Any) -> Any:
    return fields


reference_to: Any = _itself if DISABLED else intrinsic(_reference_to)
