"""The config file of transformers, and the class that it states."""

from collections.abc import Mapping
from typing import Any

CONFIG = "config.json"
DTYPE_KEYS = ("dtype", "torch_dtype")  # of transformers 5, and of older versions


def stated_class(config: Mapping[str, Any]) -> str | None:
    """Return the transformers class that a config states; None if it states none."""
    stated = config.get("architectures")
    first = stated[0] if isinstance(stated, list) and stated else None
    # The name is untrusted, and is shown in commands that users paste.
    if isinstance(first, str) and first.isidentifier() and first.isascii():
        return first
    return None
