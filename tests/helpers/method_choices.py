"""Methods as `resize` reads them."""

from ctxextend.settings import Resize
from ctxextend.tables.method_facts import MethodChoice


def read_choice(method: str | None = None, keep_first: int | None = None) -> MethodChoice:
    """Return a method with all of its settings, as requested by flags."""
    return Resize(8, method=method, keep_first=keep_first).choice
