"""Pickles that nest a value in itself again and again: some hundred bytes, and no end of work for who hashes it.

By the memo of a pickle each of n tuples may hold the one before it twice, which makes 2^n values to go through once the
last is a key of a dict. torch's restricted unpickler runs nothing, but does hash keys.
"""

import pickletools
from typing import IO, Any

__all__ = ["is_endless"]

# Values in one tuple, counted as often as they stand in it; what torch writes holds some tens.
MOST_VALUES = 100_000
# The first version of torch's files holds three small pickles before that of the tensors.
MOST_PICKLES = 4
MARK = -1


def is_endless(stream: IO[bytes]) -> bool:
    """Whether a tuple in the pickles at the begin of a stream holds more values than any file of tensors has.

    Nothing is built; what is malformed is left to who reads it.
    """
    try:
        return any(_has_endless(stream) for _ in range(MOST_PICKLES))
    except (ValueError, IndexError, KeyError, EOFError, UnicodeDecodeError):
        return False


def _has_endless(stream: IO[bytes]) -> bool:
    stack: list[int] = []
    memo: dict[Any, int] = {}
    for operation, argument, _ in pickletools.genops(stream):
        name = operation.name
        if name.endswith("PUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name.endswith("GET"):
            stack.append(memo[argument])
        elif _applied(operation, stack) > MOST_VALUES and name.startswith("TUPLE"):
            return True
    return False


def _applied(operation: Any, stack: list[int]) -> int:
    """Apply an operation to a stack of how many values each entry stands for; return that of its result."""
    values = 1
    for kind in reversed(operation.stack_before):
        if kind is pickletools.stackslice:
            while stack[-1] != MARK:
                values += stack.pop()
        else:
            values += max(stack.pop(), 0)
    stack.extend(MARK if kind is pickletools.markobject else values for kind in operation.stack_after)
    return values
