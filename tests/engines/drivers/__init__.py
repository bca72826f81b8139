"""Scripts that run in the environment of an engine, which has no ctxextend and maybe no torch."""
