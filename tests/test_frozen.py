"""The package's frozen dataclasses beside Python's own, which are the same but for the time they take to define."""

import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field
from functools import cached_property
from typing import Any

import pytest

from ctxextend import frozen


def make(dataclass: Any) -> tuple[type, type]:
    @dataclass(frozen=True)
    class Point:
        """A point."""

        x: int
        y: int = 2
        names: list[str] = field(default_factory=list)

        @cached_property
        def total(self) -> int:
            return self.x + self.y

    @dataclass(frozen=True)
    class Named(Point):
        """One with a name."""

        name: str = "a"

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("below 0")

    return Point, Named


OURS, THEIRS = make(frozen.dataclass), make(dataclasses.dataclass)
BOTH = pytest.mark.parametrize(("point", "named"), [OURS, THEIRS], ids=["ours", "theirs"])


@BOTH
def test_dataclass_takes_values_in_order_or_by_name(point: Any, named: Any) -> None:
    assert vars(named(1, name="b")) == {"x": 1, "y": 2, "names": [], "name": "b"}
    assert list(vars(named(name="b", x=1))) == ["x", "y", "names", "name"]
    assert point(1).names is not point(1).names


@BOTH
@pytest.mark.parametrize(
    ("values", "named_values"), [((), {}), ((1, 2, [], 4), {}), ((1,), {"x": 1}), ((1,), {"z": 1}), ((), {"y": 1})]
)
def test_dataclass_refuses_what_its_fields_do_not_take(
    values: tuple[Any, ...], named_values: dict[str, Any], point: Any, named: Any
) -> None:
    with pytest.raises(TypeError):
        point(*values, **named_values)


@BOTH
def test_dataclass_cannot_be_changed(point: Any, named: Any) -> None:
    made = point(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        made.x = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del made.x
    assert (made.total, made.total, dataclasses.replace(made, x=5).total) == (3, 3, 7)


@BOTH
def test_dataclass_is_equal_by_its_values_and_class(point: Any, named: Any) -> None:
    assert point(1) == point(1) != point(2)
    assert named(1) != point(1)
    assert point(1) != (1, 2, [])
    assert hash(named(1, names=())) == hash(named(1, names=())) != hash(named(2, names=()))
    with pytest.raises(TypeError, match="unhashable"):
        hash(point(1))


@pytest.mark.parametrize("dataclass", [frozen.dataclass, dataclasses.dataclass], ids=["ours", "theirs"])
def test_dataclass_leaves_comparing_to_its_bases(dataclass: Any) -> None:
    class Base:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Base)

        def __hash__(self) -> int:
            return 7

    @dataclass(frozen=True, eq=False)
    class Inner(Base):
        x: int

    assert Inner(1) == Inner(2)
    assert hash(Inner(1)) == 7


@BOTH
def test_dataclass_is_shown_and_taken_apart(point: Any, named: Any) -> None:
    assert repr(named(1)).endswith("Named(x=1, y=2, names=[], name='a')")
    assert dataclasses.asdict(named(1)) == {"x": 1, "y": 2, "names": [], "name": "a"}
    assert [one.name for one in dataclasses.fields(named)] == ["x", "y", "names", "name"]
    assert copy.deepcopy(named(1)) == named(1)
    with pytest.raises(ValueError, match="below 0"):
        named(-1)


def test_dataclass_is_pickled() -> None:
    from ctxextend.recipe import Origin

    assert pickle.loads(pickle.dumps(Origin("main"))) == Origin("main")


def test_dataclass_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataclasses, "_create_fn", None, raising=False)  # by which Python compiles up to 3.12
    assert make(frozen.dataclass)[1](1).name == "a"
