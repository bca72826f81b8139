"""The rules of all runtimes."""

from ctxextend.runtimes.schema import Rule

RULES: tuple[Rule, ...] = (
    Rule(
        "transformers",
        ("yarn", "linear", "dynamic", "theta", "learned", "llama3", "longrope"),
        None,
    ),
    Rule("vllm", ("yarn", "theta"), None),
)
