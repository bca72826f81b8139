"""Plain YAML, each value with the place where it was written."""

from dataclasses import dataclass
from typing import Any

from ctxextend.checkpoints.jsontext import open_brackets
from ctxextend.errors import RecipeError

__all__ = ["MOST_CHARACTERS", "Entries", "Place", "Value", "plain", "plain_loader", "read_value"]

# Far more than a recipe needs, its provenance included; what is longer would take long to be refused. Longer numbers
# are some that Python itself refuses to read or to print.
MOST_CHARACTERS = 200_000
MOST_VALUES = 10_000
DEEPEST = 100
MOST_DIGITS = 100

TAG = "tag:yaml.org,2002:"
SCALARS = ("null", "bool", "int", "float", "str")
# What YAML takes for something else if it is not in quotes, and no recipe means so.
TEXTS = ("timestamp", "merge", "value")

HINT = "A recipe is a YAML file: source, resize, train and evaluate, and below them the flags with underscores."


@dataclass(frozen=True)
class Place:
    """Where something was written; places of a file sort by their lines.

    Attributes:
        line: The line of the file, from 1 on; 0 is the file as a whole.
        name: What to call the file, or what was typed in its stead.
    """

    line: int
    name: str

    def __lt__(self, other: "Place") -> bool:
        return (self.line, self.name) < (other.line, other.name)

    def __str__(self) -> str:
        return f"{self.name}, line {self.line}" if self.line else self.name


@dataclass(frozen=True)
class Value:
    """A value and where it was written.

    Attributes:
        content: None, a bool, int, float or str; a list of values; or `Entries`.
        place: Where its key stands, or where it begins if it has none.
        is_second: Whether its key was there before.
    """

    content: Any
    place: Place
    is_second: bool = False


class Entries(list[tuple[str, Value]]):
    """A mapping as it was written: its keys and values in their order, keys that stand twice included."""


def plain(value: Value) -> Any:
    """Return a value without its places; of a key that stands twice, the last holds."""
    if isinstance(value.content, Entries):
        return {key: plain(entry) for key, entry in value.content}
    return [plain(item) for item in value.content] if isinstance(value.content, list) else value.content


def plain_loader() -> Any:
    """Return a safe loader of PyYAML that refuses what takes long to read, or more memory than its lines."""
    import yaml  # at use: most commands need none

    class Loader(yaml.SafeLoader):
        """A loader without aliases, by which a few lines stand for what no memory holds, and without other excess."""

        values = depth = 0

        def __init__(self, stream: str) -> None:
            super().__init__(stream)
            if open_brackets(stream) > DEEPEST:  # which PyYAML would look through again for each
                raise yaml.YAMLError("it is nested too deep")

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.values, self.depth = self.values + 1, self.depth + 1
            wrong = {
                "it refers to itself by aliases": self.check_event(yaml.AliasEvent),
                "it is nested too deep": self.depth > DEEPEST,
                f"it holds more than {MOST_VALUES:,} values": self.values > MOST_VALUES,
            }
            self._refuse([problem for problem, holds in wrong.items() if holds])
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

        def compose_scalar_node(self, anchor: Any) -> Any:
            node: Any = super().compose_scalar_node(anchor)
            is_number = node.tag in (f"{TAG}int", f"{TAG}float")
            self._refuse(["it holds a number that is too long"] if is_number and len(node.value) > MOST_DIGITS else [])
            return node

        def _refuse(self, problems: list[str]) -> None:
            if problems:
                mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
                raise yaml.MarkedYAMLError(problem=problems[0], problem_mark=mark)

    return Loader


def read_value(text: str, place: Place, *, in_lines: bool = True) -> Value:
    """Read one value, a whole file's or what was typed for one key.

    Args:
        text: YAML, of mappings, lists, texts, numbers, true, false and null alone.
        place: Where it was written.
        in_lines: Whether the places inside it are lines of its own.

    Raises:
        RecipeError: It is no such YAML.
    """
    import yaml

    if len(text) > MOST_CHARACTERS:
        raise RecipeError(f"{place}: it holds {len(text):,} characters, which no recipe needs.", HINT)
    try:
        loader = plain_loader()(text)
        node = loader.get_single_node()
        return Value(None, place) if node is None else _Reader(loader, place, in_lines).value(node, place)
    except yaml.YAMLError as error:
        raise _no_yaml(error, place, in_lines) from None
    except RecursionError:
        raise RecipeError(f"{place}: it is nested too deep.", HINT) from None


def _no_yaml(error: Any, place: Place, in_lines: bool) -> RecipeError:
    """Return the error for what PyYAML could not read."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = Place(mark.line + 1, place.name) if mark is not None and in_lines else place
    return RecipeError(f"{where}: it is no plain YAML: {' '.join(str(problem or error).split())[:200]}.", HINT)


@dataclass(frozen=True)
class _Reader:
    """Turns nodes of PyYAML into values.

    Attributes:
        loader: What composed them.
        place: Where the text was written.
        in_lines: As in `read_value`.
    """

    loader: Any
    place: Place
    in_lines: bool

    def value(self, node: Any, place: Place) -> Value:
        """Return a node's value.

        Raises:
            YAMLError: Its tag is none of plain YAML, or does not fit it.
        """
        kind = node.tag.removeprefix(TAG)
        if node.id == "mapping" and kind == "map":
            return Value(Entries(self._entry(*pair) for pair in node.value), place)
        if node.id == "sequence" and kind == "seq":
            return Value([self.value(item, self._place(item)) for item in node.value], place)
        if node.id == "scalar" and kind in TEXTS:
            return Value(node.value, place)
        if node.id == "scalar" and kind in SCALARS:
            return Value(self._scalar(node, kind), place)
        raise self._error(node, f"its tag {node.tag} is none that a recipe needs")

    def _entry(self, key: Any, value: Any) -> tuple[str, Value]:
        if key.id != "scalar":
            raise self._error(key, "a list or a mapping stands where a key should")
        return key.value, self.value(value, self._place(key))

    def _place(self, node: Any) -> Place:
        return Place(node.start_mark.line + 1, self.place.name) if self.in_lines else self.place

    def _scalar(self, node: Any, kind: str) -> Any:
        try:
            return self.loader.construct_object(node)
        except (ValueError, LookupError, ArithmeticError):  # a tag that was typed, or a number past a float's range
            raise self._error(node, f"{node.value[:40]!r} is no {kind}") from None

    def _error(self, node: Any, problem: str) -> Exception:
        import yaml

        return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
