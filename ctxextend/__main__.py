"""`ctxextend` and `python -m ctxextend`."""

import os
import signal
import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it silently, also while it loads."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore it
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    try:
        from ctxextend.cli.app import main as run

        run()
    except KeyboardInterrupt:  # just before the app's own handler is gone
        sys.exit(130)


if __name__ == "__main__":
    main()
