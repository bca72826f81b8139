"""`python -m ctxextend`."""

from ctxextend.cli.app import main

main()
