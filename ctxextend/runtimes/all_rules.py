"""The rules of all runtimes."""

from ctxextend.runtimes.rule_schema import Rule
from ctxextend.runtimes.rules import (
    of_ctranslate2,
    of_llama_cpp,
    of_mlx,
    of_optimum,
    of_sglang,
    of_tei,
    of_transformers,
    of_vllm,
)

RULES: tuple[Rule, ...] = (
    *of_transformers.RULES,
    *of_vllm.RULES,
    *of_sglang.RULES,
    *of_llama_cpp.RULES,
    *of_mlx.RULES,
    *of_ctranslate2.RULES,
    *of_optimum.RULES,
    *of_tei.RULES,
)
