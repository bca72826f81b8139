"""`ctxextend` and `python -m ctxextend`."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from ctxextend.cli.app import main as run

        run()
    except KeyboardInterrupt:  # before anything was begun, or could say so
        sys.exit(130)


if __name__ == "__main__":
    main()
