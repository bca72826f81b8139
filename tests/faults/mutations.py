"""Files as a stranger may make them: bytes changed, and JSON whose structure changes."""

import copy
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

__all__ = ["VALUES", "mutate_bytes", "mutate_json", "mutate_text"]

# Texts of JSON in place of a value: other types, numbers past every limit, and what is no JSON at all.
VALUES = (
    *("null", "true", "false", "0", "-1", "1.5", "1e400", "-1e400", "NaN", "-Infinity", "1e-400", "16.0"),
    *("1000000000000", "9223372036854775808", "-9223372036854775809", "9" * 400, "9" * 5000, "1" + "0" * 310),
    *('""', '"x"', '"16"', r'"\ud800"', r'"\u0000"', '"../../x"', '"/etc/passwd"', '"a\\nb"', '"' + "x" * 300 + '"'),
    *("[]", "[null]", "[[]]", '["GPT2Model", 7]', "{}", '{"a": 1, "a": 2}', '{"": {}}', '{"Fixed": -1}'),
    *("[" * 5000 + "]" * 5000, '{"a":' * 5000 + "1" + "}" * 5000, "[1,]", "01", "+1", "'x'", "undefined", ""),
)

PIECES = (
    *(b"\xff", b"\xef\xbb\xbf", b"\x00", b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\\ud800", b"\n", b"\t- "),
)


def mutate_bytes(random: Random, data: bytes) -> bytes:
    """Return bytes some of which were changed, cut, doubled or inserted."""
    for _ in range(random.randint(1, 4)):
        first, last = sorted((random.randint(0, len(data)), random.randint(0, len(data))))
        last = min(last, first + 64)
        piece = random.choice((b"", data[first:last] * 2, bytes([random.randint(0, 255)]), random.choice(PIECES)))
        data = data[:first] + piece + data[random.choice((first, first + 1, last)) :]
    return data


def mutate_json(random: Random, data: bytes) -> bytes:
    """Return JSON of which a value, a key or a member is another."""
    value = json.loads(data)
    for _ in range(random.randint(1, 3)):
        value = copy.deepcopy(value)
        random.choice(CHANGES)(random, *random.choice(list(_members(value)) or [({"": value}, "")]))
    text = json.dumps(value)
    for mark, put in {f'"{MARK}{index}"': put for index, put in enumerate(VALUES)}.items():
        text = text.replace(mark, put)
    # What stands twice, which no object of Python holds.
    text = text.replace(f"{TWICE}", "")
    return text.encode("utf-8", "surrogatepass")


MARK = "value to put here: "
TWICE = " (again)"


def mutate_text(random: Random, data: bytes) -> bytes:
    """Return a file's bytes changed as JSON where it still is some, or as bytes."""
    return random.choice((mutate_json, mutate_json, mutate_bytes))(random, data)


def _members(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every object and list in a value with each of its keys."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _members(value[key])


def _replace(random: Random, holder: Any, key: Any) -> None:
    holder[key] = f"{MARK}{random.randrange(len(VALUES))}"


def _remove(random: Random, holder: Any, key: Any) -> None:
    del holder[key]


def _nest(random: Random, holder: Any, key: Any) -> None:
    holder[key] = random.choice(([holder[key]], {str(key): holder[key]}, [[holder[key]]] * 2))


def _double(random: Random, holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        holder[f"{key}{TWICE}"] = f"{MARK}{random.randrange(len(VALUES))}"
    else:
        holder.append(holder[key])


def _rename(random: Random, holder: Any, key: Any) -> None:
    if isinstance(holder, dict):
        holder[random.choice(("", "x" * 300, "\ud800", "__class__", "a.b", "\x1b[2J"))] = holder.pop(key)


CHANGES: tuple[Callable[[Random, Any, Any], None], ...] = (*[_replace] * 3, _remove, _nest, _double, _rename)
