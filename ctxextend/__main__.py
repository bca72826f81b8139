"""`ctxextend` and `python -m ctxextend`."""

import gc
import sys

__all__ = ["main"]

# What a start allocates lives as long as the process: to look through it for cycles at Python's own threshold of 700
# objects takes a tenth of the start.
GC_THRESHOLD = 50_000


def main() -> None:
    """Run the command line."""
    gc.set_threshold(GC_THRESHOLD)
    try:
        from ctxextend.cli.app import main as run

        run()
    except KeyboardInterrupt:  # before anything was begun, or could say so
        sys.exit(130)
    finally:
        gc.freeze()  # or Python looks through all that it holds once more, only to end then


if __name__ == "__main__":
    main()
