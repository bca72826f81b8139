"""Entry point of `ctxextend` and `python -m ctxextend`."""

import atexit
import gc
import os
import signal
import sys


def main() -> None:
    """Run the command line; Ctrl-C exits silently, even during imports."""
    # Python would search all objects for garbage and free them one by one, just before it exits.
    atexit.register(gc.freeze)
    # Imports make tens of thousands of objects that stay; by default, each 700 are searched.
    gc.set_threshold(100_000)
    # Background jobs of a shell ignore SIGINT.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    try:
        from ctxextend.cli.app import main as run

        run()
    except KeyboardInterrupt:  # raised just before the app resets its handler
        sys.exit(130)


if __name__ == "__main__":
    main()
