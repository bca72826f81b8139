"""Random mutations of files: of their bytes, and of the structure of JSON."""

import copy
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

__all__ = ["VALUES", "mutate_bytes", "mutate_json", "mutate_text"]

# Replacements of JSON values: other types, numbers beyond all limits, and invalid JSON.
VALUES = (
    *(
        "null",
        "true",
        "false",
        "0",
        "-1",
        "1.5",
        "1e400",
        "-1e400",
        "NaN",
        "-Infinity",
        "1e-400",
        "16.0",
    ),
    *(
        "1000000000000",
        "9223372036854775808",
        "-9223372036854775809",
        "9" * 400,
        "9" * 5000,
        "1" + "0" * 310,
    ),
    *(
        '""',
        '"x"',
        '"16"',
        r'"\ud800"',
        r'"\u0000"',
        '"../../x"',
        '"/etc/passwd"',
        '"a\\nb"',
        '"' + "x" * 300 + '"',
    ),
    *(
        "[]",
        "[null]",
        "[[]]",
        '["GPT2Model", 7]',
        "{}",
        '{"a": 1, "a": 2}',
        '{"": {}}',
        '{"Fixed": -1}',
    ),
    *(
        "[" * 5000 + "]" * 5000,
        '{"a":' * 5000 + "1" + "}" * 5000,
        "[1,]",
        "01",
        "+1",
        "'x'",
        "undefined",
        "",
    ),
)

FRAGMENTS = (
    *(
        b"\xff",
        b"\xef\xbb\xbf",
        b"\x00",
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\\",
        b"\\ud800",
        b"\n",
        b"\t- ",
    ),
)


def mutate_bytes(random: Random, data: bytes) -> bytes:
    """Return bytes with some of them changed, cut, repeated or inserted."""
    for _ in range(random.randint(1, 4)):
        first, last = sorted((random.randint(0, len(data)), random.randint(0, len(data))))
        last = min(last, first + 64)
        fragment = random.choice(
            (b"", data[first:last] * 2, bytes([random.randint(0, 255)]), random.choice(FRAGMENTS))
        )
        data = data[:first] + fragment + data[random.choice((first, first + 1, last)) :]
    return data


def mutate_json(random: Random, data: bytes) -> bytes:
    """Return JSON with some values, keys or members replaced."""
    value = json.loads(data)
    for _ in range(random.randint(1, 3)):
        value = copy.deepcopy(value)
        random.choice(CHANGES)(random, *random.choice(list(_members(value)) or [({"": value}, "")]))
    text = json.dumps(value)
    for mark, value_text in {
        f'"{MARK}{index}"': value_text for index, value_text in enumerate(VALUES)
    }.items():
        text = text.replace(mark, value_text)
    # Create duplicate keys, which a dict cannot contain.
    text = text.replace(DUPLICATE, "")
    return text.encode("utf-8", "surrogatepass")


MARK = "placeholder: "
DUPLICATE = " (duplicate)"


def mutate_text(random: Random, data: bytes) -> bytes:
    """Return a JSON file with a random mutation of its structure or its bytes."""
    return random.choice((mutate_json, mutate_json, mutate_bytes))(random, data)


def _members(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every nested object and list with each of its keys or indices."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _members(value[key])


def _replace(random: Random, container: Any, key: Any) -> None:
    container[key] = f"{MARK}{random.randrange(len(VALUES))}"


def _remove(random: Random, container: Any, key: Any) -> None:
    del container[key]


def _nest(random: Random, container: Any, key: Any) -> None:
    container[key] = random.choice(
        ([container[key]], {str(key): container[key]}, [[container[key]]] * 2)
    )


def _duplicate(random: Random, container: Any, key: Any) -> None:
    if isinstance(container, dict):
        container[f"{key}{DUPLICATE}"] = f"{MARK}{random.randrange(len(VALUES))}"
    else:
        container.append(container[key])


def _rename(random: Random, container: Any, key: Any) -> None:
    if isinstance(container, dict):
        container[random.choice(("", "x" * 300, "\ud800", "__class__", "a.b", "\x1b[2J"))] = (
            container.pop(key)
        )


CHANGES: tuple[Callable[[Random, Any, Any], None], ...] = (
    *[_replace] * 3,
    _remove,
    _nest,
    _duplicate,
    _rename,
)
