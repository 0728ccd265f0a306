# Everything happens in .venv; no target needs anything installed by hand but Python 3.11 or 3.12
# and, on Linux, the system's libseccomp2.
SHELL := /bin/bash
PYTHON ?= python3
# More arguments of pip. On a laptop without a GPU, saving gigabytes of CUDA libraries:
#   make setup PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_ARGS ?=
# More arguments of the run: make full ARGS="--set train.seed=1"
ARGS ?=
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup full test check up down ui serve-env bench

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: .venv/.ready ## Install everything into .venv (fast when nothing changed)

.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || \
	  { echo "Python 3.11 or 3.12 is needed; say where it is: make setup PYTHON=python3.11"; exit 1; }
	@ldconfig -p 2>/dev/null | grep -q libseccomp.so.2 || [ "$$(uname)" != Linux ] || \
	  echo "Warning: libseccomp2 is missing, the sandbox will refuse to start: apt-get install libseccomp2"
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(PIP_ARGS) --editable ".[dev]"
	@test -f params.resolved.yaml || $(BIN)/python -m flows.pipeline resolve
	@touch $@

full: setup ## The whole chain: data, gate, training, proof, evaluation, registry
	$(BIN)/python -m flows.pipeline run $(ARGS)

test: setup ## The tests, with a sample of the slow ones; not those that need a GPU
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -m "not gpu and (not slow or slow_sample)"

check: setup ## Lint, format, types, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

up: setup ## Start Prefect's server and worker and the MLflow server in the background
	$(BIN)/python -m flows.services up

down: ## Stop them
	@test ! -x $(BIN)/python || $(BIN)/python -m flows.services down

ui: setup ## Say where their pages are, and open them
	$(BIN)/python -m flows.services ui

serve-env: setup ## Serve the environment on 127.0.0.1:8000 until Ctrl-C
	RLM_SETTINGS=params.resolved.yaml $(BIN)/python -m env.server.app --host 127.0.0.1 --port 8000

bench: setup ## Measure speed and cheats: scale, sandbox, rollouts, exploits
	@set -e; for name in scale sandbox rollout exploits; do echo "== $$name"; $(BIN)/python -m benchmarks.$$name; done
