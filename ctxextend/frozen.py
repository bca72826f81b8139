"""Frozen dataclasses like Python's own, whose methods are shared and not compiled anew for every class.

Python writes six methods of each as text and compiles them, which takes half a millisecond a class, and a small command
defines a hundred of them: a third of its start.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]


def _initialize(self: Any, /, *values: Any, **named: Any) -> None:
    fields, name = self.__dataclass_fields__, type(self).__qualname__
    given = dict(zip(fields, values, strict=False)) | named
    if len(values) + len(named) > len(given) or given.keys() - fields.keys():
        raise TypeError(f"{name} takes {', '.join(fields)}, each once; given were {len(values)} and {', '.join(named)}")
    for field in fields.values():
        if field.name in given:
            value = given[field.name]
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            value = field.default
        if value is dataclasses.MISSING:
            raise TypeError(f"{name} is missing {field.name}")
        self.__dict__[field.name] = value
    if hasattr(self, "__post_init__"):
        self.__post_init__()


def _values(self: Any) -> tuple[Any, ...]:
    return tuple(getattr(self, name) for name in self.__dataclass_fields__)


def _represent(self: Any) -> str:
    inner = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__dataclass_fields__)
    return f"{type(self).__qualname__}({inner})"


def _equal(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if type(self) is type(other) else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _refuse_to_set(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


METHODS = {
    "__init__": _initialize,
    "__repr__": _represent,
    "__eq__": _equal,
    "__hash__": _hash,
    "__setattr__": _refuse_to_set,
    "__delattr__": _refuse_to_delete,
}

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen=False, eq=True):
        """Make a class what ``dataclasses.dataclass(frozen=True)`` makes it; its fields have defaults, and no more."""

        def make(of):
            if not frozen:
                raise TypeError(f"{of.__qualname__} is no frozen dataclass: use dataclasses.dataclass")
            own = {name for name in METHODS if name in vars(of) and vars(of)[name] is not None}
            own |= set() if eq else {"__eq__", "__hash__"}
            of.__doc__ = of.__doc__ or of.__qualname__  # for which Python would take the whole class apart
            made = dataclasses.dataclass(init=False, repr=False, eq=False)(of)
            for name in METHODS.keys() - own:
                setattr(made, name, METHODS[name])
            return made

        return make
