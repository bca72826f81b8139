"""The command line: parse, one call into the library, print."""
