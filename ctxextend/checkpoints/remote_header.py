"""The header of a weights file on the Hub, which is read without the file."""

from typing import NamedTuple


class RemoteHeader(NamedTuple):
    """The header of a safetensors file on the Hub."""

    text: bytes  # without its length
    size: int  # of the whole file in bytes
