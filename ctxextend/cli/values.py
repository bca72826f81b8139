"""Values of arguments and options, passed on as text.

Typer reads every value, also a default, with pydantic, whose import takes as long as numpy's. The
settings read them instead.
"""

from collections.abc import Iterable
from typing import Any


class PlainText:
    """Leaves the values of a parameter as they are: ``typer._coercion.RuntimeParam``."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of a parameter; a repeated one has a list of values."""
        if value is None and (param.multiple or param.nargs == -1):
            return ()
        return value


def read_plain_values(parameters: Iterable[Any]) -> None:
    """Let parameters leave their values as they are."""
    for parameter in parameters:
        parameter.get_runtime_param = PlainText
