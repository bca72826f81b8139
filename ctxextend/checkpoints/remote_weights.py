"""Weights files on the Hub of which only the header is downloaded.

A resize of settings, and all that headers tell, needs no values.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NoReturn

from ctxextend.checkpoints.safetensors_file import TensorFile, parse_header
from ctxextend.checkpoints.source import RemoteHeader
from ctxextend.errors import RemoteWeightsError


@dataclass(frozen=True, eq=False)
class RemoteFile(TensorFile):
    """A safetensors file on the Hub; its path is where a download would put it."""

    is_remote: ClassVar = True

    def read_bytes(self, name: str) -> NoReturn:
        """Raise an error, since the bytes of a tensor are not here.

        Raises:
            RemoteWeightsError: Always.
        """
        raise RemoteWeightsError(self.path.name, name)


def open_remote(path: Path, remote: RemoteHeader) -> RemoteFile:
    """Return a file of the Hub by its header.

    Raises:
        CheckpointError: The header is malformed.
    """
    header, entries = parse_header(path, remote.text, remote.size)
    data_start = 8 + len(remote.text)
    return RemoteFile(path=path, header=header, entries=entries, data_start=data_start)
