# Every target sets up what it needs, in .venv. Outside this folder is only the model, in your cache folder.
#
#   make tune     the main job on a real model: some 6 minutes on two cores, set-up included
#   make serve    an OpenAI-compatible server on the built-in model
#   make check    the fast gate: format, lint, types, imports, quick tests
#   make test     the whole gate; coverage of the quick tests alone, because counting lines slows the rest;
#                 a test on every core, then those that use the model or look at the clock, one by one
#   make explore  the property tests on examples never drawn before: after a change, or overnight
#   make bench    the engine against its peers, in one run: those of `make llama` and `make vllm` where they are

PYTHON ?= python3
UV     := $(or $(shell command -v uv 2>/dev/null),.uv/bin/uv)
BIN    := .venv/bin

.PHONY: setup tune serve check test explore bench vllm llama lock clean
.DEFAULT_GOAL := setup

setup: .venv/.ready-dev

tune: .venv/.ready
	$(BIN)/headrace tune --journal .tune

serve: .venv/.ready
	$(BIN)/headrace serve smollm2

check: .venv/.ready-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python tools/ratchets.py
	$(BIN)/pytest -n auto -m "not slow" --hypothesis-profile=check

test: .venv/.ready-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python tools/ratchets.py
	$(BIN)/pytest -n auto -m "not slow" --hypothesis-profile=check --cov --cov-report=term
	$(BIN)/pytest -n auto -m "(slow or hypothesis) and not (model or alone)" -rfER --hypothesis-profile=test
	$(BIN)/pytest -m "(slow or hypothesis) and (model or alone)" -rfER --hypothesis-profile=test

explore: .venv/.ready-dev
	$(BIN)/pytest --hypothesis-profile=explore -m hypothesis

bench: .venv/.ready-dev
	$(BIN)/python -m bench.engine --json

# vLLM's environment for the benchmarks that compare with it; several GB of disk, some minutes.
vllm: .venv/.ready
	tools/vllm_environment.sh .vllm

# llama.cpp's server for the same benchmark, in an environment of its own.
llama: .venv/.ready
	tools/llama_environment.sh .llama

# Pins carry no address: whose index serves them is the user's own choice.
lock: $(UV)
	$(UV) pip compile --universal --no-emit-index-url --no-emit-find-links --no-header --upgrade \
	    --python-version 3.11 -o requirements.lock pyproject.toml
	$(UV) pip compile --universal --no-emit-index-url --no-emit-find-links --no-header --upgrade \
	    --python-version 3.11 --group dev -c requirements.lock -o requirements-dev.lock pyproject.toml

.uv/bin/uv:
	$(PYTHON) -m venv .uv
	.uv/bin/pip install --quiet --disable-pip-version-check uv

.venv/bin/python: | $(UV)
	$(UV) venv --quiet --allow-existing --python '>=3.11' .venv

.venv/.ready: pyproject.toml requirements.lock | .venv/bin/python
	$(UV) pip install --python .venv/bin/python -r requirements.lock
	$(UV) pip install --quiet --python .venv/bin/python --no-deps -e .
	@touch $@

.venv/.ready-dev: requirements-dev.lock .venv/.ready
	$(UV) pip install --python .venv/bin/python -r requirements-dev.lock
	@touch $@

clean:
	rm -rf .venv .uv .tune .coverage .hypothesis .pytest_cache .ruff_cache .import_linter_cache
