"""Run engines on folders that ctxextend writes: `python -m tests.engines ENGINE`.

Each engine has its own virtual environment, since they pin other versions of transformers.
"""
