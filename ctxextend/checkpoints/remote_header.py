"""The header of a weights file on the Hub, which is read without the file."""

from typing import NamedTuple


class RemoteHeader(NamedTuple):
    """The start of a safetensors file on the Hub."""

    start: bytes  # the length of the header, and at least the header
    size: int  # of the whole file in bytes
