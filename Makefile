# Every target sets up its own environment: only python3 (3.11 or newer) with venv, and pip, are needed.

PYTHON ?= python3
# One more than there are cores: tests of several processes and of timeouts wait more than they compute.
JOBS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
PART ?=
GPU_ARGS ?=
PYTEST_ARGS ?=

VENV := .venv
BENCH := .bench
WHEEL := .wheel
BIN := $(VENV)/bin
PIP := -m pip install --quiet --disable-pip-version-check
# One thread a process: small tensors gain nothing from more, and two test processes would fight over the cores.
# Bytecode is cached even where the environment says otherwise: the tests start hundreds of processes.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=

.DEFAULT_GOAL := help
.PHONY: help quickstart test check coverage wheel-test test-torch lint format types docs bench bench-env gpu clean
.DELETE_ON_ERROR:

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "composer needs Python 3.11 or newer; try: make PYTHON=python3.12 ...")'
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# A stamp for each set of requirements, so that `make quickstart` does not wait for the tools of the tests.
$(VENV)/stamp-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing composer-torch[$*] into $(VENV) (the first time takes a few minutes)"
	@$(BIN)/python $(PIP) -c constraints.txt -e '.[$*]'
	@touch $@

# Packages that would bring another torch along, or older releases of what the tests run with. They lie in a folder of
# their own, which tests/conftest.py puts on the path: torchvision imports beside a CPU build of torch only once its
# operators have names, and packages that try to import it unasked would fail.
$(VENV)/apart/stamp: tests/apart.txt benchmarks/torchvision.txt | $(VENV)/stamp-dev
	@echo "installing torchvision and its like for the tests into $(VENV)/apart"
	@rm -rf $(VENV)/apart
	@$(BIN)/python $(PIP) --no-deps --target $(VENV)/apart -r tests/apart.txt
	@touch $@

# DeepSpeed comes as source only, and asks the torch that is there what to build; on the CPU that is nothing.
$(VENV)/deepspeed.stamp: constraints.txt $(VENV)/stamp-dev
	@echo "installing deepspeed for the tests into $(VENV)"
	@DS_BUILD_OPS=0 $(BIN)/python $(PIP) --no-build-isolation -c constraints.txt deepspeed
	@touch $@

quickstart: $(VENV)/stamp-examples  ## train on real digits: a baseline, then a recipe of methods
	@$(BIN)/python examples/quickstart.py

test: $(VENV)/stamp-dev $(VENV)/apart/stamp $(VENV)/deepspeed.stamp  ## run the tests (PYTEST_ARGS="-k time" passes options on)
	$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

# What a change usually breaks: structure, docstrings, signatures, the core, the loop, checkpoints, and the contracts of
# callbacks and loggers.
CHECK := $(addprefix tests/,test_design.py test_docstrings.py test_signatures.py test_surface.py core callbacks/test_contract.py \
  loggers/test_contract.py checkpoint/test_save.py checkpoint/test_load.py trainer/test_fit.py trainer/test_step.py \
  trainer/test_microbatch.py trainer/test_evaluate.py trainer/test_resume.py)

check: $(VENV)/stamp-dev $(VENV)/apart/stamp  ## lint and the tests that a change usually breaks, in less than 90 seconds
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(ONE_THREAD) $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile -m "not slow" $(CHECK) $(PYTEST_ARGS)

coverage:  ## run the tests with line coverage, which takes half as long again
	$(MAKE) test PYTEST_ARGS="--cov=composer --cov-report=term $(PYTEST_ARGS)"

# Both test the package as a user gets it, in an environment of their own.
wheel-test:  ## install the wheel into an empty environment and run the tests from outside of the tree
	JOBS=$(JOBS) PYTHON="$(PYTHON)" .ci/wheel-test $(PYTEST_ARGS)

test-torch:  ## the same with another torch: make test-torch TORCH=2.10.0
	JOBS=$(JOBS) PYTHON="$(PYTHON)" TORCH="$(TORCH)" .ci/wheel-test $(PYTEST_ARGS)

lint: $(VENV)/stamp-dev  ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/stamp-dev  ## repair what lint can repair
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/stamp-dev  ## check the types
	$(BIN)/basedpyright --project pyproject.toml

docs: $(VENV)/stamp-docs  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The peers have an environment of their own. The predecessor has the same import name as this package, so it lies in a
# folder that only those benchmark processes see that are started with PYTHONPATH=$(BENCH)/predecessor (and `python -P`).
$(BENCH)/bin/python:
	@$(PYTHON) -m venv $(BENCH)

$(BENCH)/stamp-peers: benchmarks/requirements.txt benchmarks/without_dependencies.txt benchmarks/torchvision.txt benchmarks/torchvision_operators.py | $(BENCH)/bin/python
	@echo "installing the peers into $(BENCH) (takes some minutes)"
	@$(BENCH)/bin/python $(PIP) -r benchmarks/requirements.txt
	@$(BENCH)/bin/python $(PIP) --no-deps -r benchmarks/without_dependencies.txt
	@cp benchmarks/torchvision_operators.py $(BENCH)/lib/python3*/site-packages/
	@echo 'import torchvision_operators; torchvision_operators.install()' > "$$(echo $(BENCH)/lib/python3*/site-packages)/torchvision_operators.pth"
	@rm -rf $(BENCH)/predecessor
	@$(BENCH)/bin/python $(PIP) --no-deps --target $(BENCH)/predecessor mosaicml==0.32.1
	@touch $@

bench-env: $(BENCH)/stamp-peers  ## make the environment of the benchmarks

$(BENCH)/stamp-composer: pyproject.toml $(BENCH)/stamp-peers
	@$(BENCH)/bin/python $(PIP) -e '.[bench]'
	@touch $@

bench: $(BENCH)/stamp-composer  ## run every benchmark beside its peers and write benchmarks/results/ (BENCH_ARGS=--quick: fewer measurements, write nothing)
	@$(BENCH)/bin/python -m benchmarks.run $(BENCH_ARGS)

# Nothing is installed: machines with a GPU have a torch of their own, and often no network. benchmarks/README.md has the
# pieces of less than ten minutes each.
gpu:  ## check and measure everything on a GPU, in half an hour (PART=tests, nccl, speed or memory; GPU_ARGS="--tiny --device cpu")
	@$(PYTHON) -m benchmarks.gpu $(PART) $(GPU_ARGS)

clean:  ## remove environments and everything built
	rm -rf $(VENV) $(BENCH) $(WHEEL) site build dist .coverage .coverage.* htmlcov .hypothesis .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
