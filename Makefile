# `make demo` and `make test` need Python 3.10 or newer, and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow lint format docs-output bench clean

demo: $(VENV)/installed
	$(BIN)/ctxextend demo

# Two processes of one thread each: more threads than cores wait for each other.
test: $(VENV)/installed-dev lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# Full fault sweeps and other tests that take minutes.
test-slow: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m slow

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Put the true output of every command into README and docs.
docs-output: $(VENV)/installed-dev
	$(BIN)/python -m tests.test_docs

# Fails where a measure misses what it must reach; the table is written all the same.
bench: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks $(BENCH)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[plot]'
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
