"""A command that writes one file as all commands write figures, and draws nothing."""

import signal
import sys
from pathlib import Path

from ctxextend.errors import OutputError
from ctxextend.report.saving import save

DRAWN = b"<svg>" * 1000


def main() -> None:
    """Write the file that is named; exit 1 where it cannot be written, and 143 when told to end."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        save(Path(sys.argv[1]), DRAWN)
    except OutputError as error:
        sys.stderr.write(f"Error: {error}")
        sys.exit(1)
