"""What several tests share: checkpoints, synthetic results, and other programs.

Models and texts
    `pico` builds checkpoints with a few thousand parameters, and edits and compares folders.
    `trainings` builds those for training tests; its `invoke` runs a command in this process.
    `word_tokenizer` has word-level tokenizers, and texts of their words.
    `tiny` builds any model type of transformers with a small config, `zoo` runs it on text, and
    `rules` builds types without a position table. `mock_models` has models with known outputs.

Results
    `comparisons` and `evaluations` are synthetic results of `compare` and `evaluate`.

Other programs
    `terminal` runs commands on a pseudo-terminal. `hub_server` is a local Hub, with optional
    faults. `fork_server` and `tracing` run commands with faults at chosen system calls, and
    `outcomes` compares what they leave behind.

Hostile files
    `mutations` damages files at random, `hostile_weights` builds malicious ones, and `time_limit`
    limits how long reading one may take.

`stubs` writes ``ctxextend/__init__.pyi``.
"""
