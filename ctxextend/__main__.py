"""Entry point of `ctxextend` and `python -m ctxextend`."""

import atexit
import gc
import os
import signal
import sys
from contextlib import suppress
from types import FrameType


def main() -> None:
    """Run the command line; Ctrl-C prints one line, even during imports."""
    # Python would search all objects for garbage and free them one by one, just before it exits.
    atexit.register(gc.freeze)
    # Imports make tens of thousands of objects that stay; by default, each 700 are searched.
    gc.set_threshold(100_000)
    # Background jobs of a shell ignore SIGINT.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_before_the_start)
    try:
        from ctxextend.cli.app import COMMANDS, build_app, process

        with process():
            build_app([name for name in COMMANDS if name in sys.argv[1:2]] or COMMANDS)()
    except KeyboardInterrupt:  # raised just before the app resets its handler
        _print_stop()
        sys.exit(130)


def _exit_before_the_start(number: int, frame: FrameType | None) -> None:
    """Exit at once: an import may swallow an exception."""
    _print_stop()
    os._exit(128 + number)


def _print_stop() -> None:
    """Say that nothing was written: no command has started."""
    with suppress(OSError):
        os.write(2, b"Stopped: nothing was written.\n")


if __name__ == "__main__":
    main()
