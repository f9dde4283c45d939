# Everything sets itself up in .venv; nothing but Python 3.11 or newer is needed.
#   make demo       the main job on examples/quickstart
#   make test       set up, check, and run the tests (no GPU, no network beyond the package index)
#   make check      ruff, mypy, import layers, sizes, what result files name
#   make bench      the benchmarks that this machine can run
#   make test-gpu   tests marked gpu (side by side within a limit of time: tools/gpu_tests.py)
#   make test-avx2  the tests of numerics as on a CPU without AVX-512
#   make test-clients  the unmodified tinker, tinker-cookbook and verifiers, in environments of their own; files on S3
#   make docs       the documents as a site in build/site, links and anchors checked
#   make test-browser  the dashboard's pages in a real Chromium, which Debian's package `chromium` brings
#   make dist       the wheel and the sdist, checked
#   make test-wheel  the wheel of make dist in an empty environment outside of this folder, and its demo there
#   make soak       full counts of the kill, fault and property tests, and mutants of the rooms that only compute

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
VENV ?= .venv
CLIENTS ?= .venv-clients
VERIFIERS ?= .venv-verifiers
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TORCH := $(shell grep '^torch==' constraints.txt)
JOBS ?= 2
PYTEST_ARGS ?=

# One thread a process: two processes use two cores better than two threads each would. Hundreds of processes import the
# same files: they write down what they compile, also where the shell forbids it (many container images do).
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=

# What the libraries below torch and NumPy are told so that they compute as on a CPU that has AVX2 only.
AVX2_ENV := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 OPENBLAS_CORETYPE=Haswell
NUMERICS_TESTS := tests/kernels tests/adapters tests/models tests/training tests/serving tests/integrations \
	tests/checkpoints tests/end_to_end/stopped/test_kill_and_resume.py tests/end_to_end/test_isolated_trials.py

S3_TESTS := tests/store/blobs/test_s3.py tests/service/hosting/test_s3.py

.PHONY: help demo test check bench test-gpu test-avx2 test-clients test-browser docs dist test-wheel soak clean

help:
	@sed -n '2,13p' Makefile | cut -c3-

# torch goes first and alone, with its exact version: left to a resolver that looks at ranges, pip may fetch a larger
# build than the one this machine has at hand.
$(VENV)/.torch: pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3"; exit 1; fi
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@echo "setting up $(VENV) (a few minutes the first time)"
	@$(PIP) -c constraints.txt "$(TORCH)"
	@touch $@

$(VENV)/.ready-run: $(VENV)/.torch
	@$(PIP) -c constraints.txt -e .
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.torch
	@$(PIP) -c constraints.txt -e '.[dev]'
	@touch $(VENV)/.ready-run $@

demo: $(VENV)/.ready-run
	@$(BIN)/cohort demo .demo

test: check
	$(TEST_ENV) $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

check: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_sizes.py
	$(BIN)/python -m benchmarks.origins

bench: $(VENV)/.ready-dev
	$(BIN)/python -m benchmarks.run

test-gpu: $(VENV)/.ready-dev
	TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -q -m gpu $(PYTEST_ARGS)

test-avx2: $(VENV)/.ready-dev
	$(TEST_ENV) $(AVX2_ENV) $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(PYTEST_ARGS) $(NUMERICS_TESTS)

$(VENV)/.ready-mutants: $(VENV)/.ready-dev
	@$(PIP) -c constraints.txt -e '.[mutants]'
	@touch $@

# An environment of its own: the pins of other people's clients are not ours.
$(CLIENTS)/.ready: tests/clients/requirements.txt constraints.txt
	@echo "setting up $(CLIENTS) (a minute or two)"
	@$(PYTHON) -m venv --clear $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	@$(CLIENTS)/bin/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" -r tests/clients/requirements.txt
	@touch $@

# As users set it up: verifiers, uv that starts its programs, and tasksets as packages.
$(VERIFIERS)/.ready: tests/clients/verifiers.txt $(wildcard tests/clients/tasksets/*.* tests/clients/tasksets/*/*.py)
	@echo "setting up $(VERIFIERS) (a minute or two)"
	@$(PYTHON) -m venv --clear $(VERIFIERS)
	@$(VERIFIERS)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/clients/verifiers.txt
	@$(VERIFIERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps ./tests/clients/tasksets
	@touch $@

test-clients: $(VENV)/.ready-s3 $(CLIENTS)/.ready $(VERIFIERS)/.ready
	$(TEST_ENV) COHORT_CLIENTS_PYTHON=$(abspath $(CLIENTS))/bin/python \
		COHORT_VERIFIERS_PYTHON=$(abspath $(VERIFIERS))/bin/python $(BIN)/python -m pytest -q --durations=5 tests/clients $(S3_TESTS) $(PYTEST_ARGS)

$(VENV)/.ready-s3: $(VENV)/.ready-dev
	@$(PIP) -c constraints.txt -e '.[s3]'
	@touch $@

$(VENV)/.ready-browser: $(VENV)/.ready-dev
	@$(PIP) -c constraints.txt -e '.[browser]'
	@touch $@

test-browser: $(VENV)/.ready-browser
	$(TEST_ENV) $(BIN)/python -m pytest -q -rs -m browser tests/service/dashboard tests/service/admin tests/service/tenant_pages $(PYTEST_ARGS)

soak: $(VENV)/.ready-mutants
	$(TEST_ENV) $(BIN)/python -m pytest -q -m "slow and not gpu" --timeout=3600 $(PYTEST_ARGS)
	$(TEST_ENV) COHORT_TEST_DRAWS=new $(BIN)/python -m pytest -q -m "hypothesis and not slow and not gpu" $(PYTEST_ARGS)
	$(TEST_ENV) $(BIN)/python -m tools.mutants

$(VENV)/.ready-docs: $(VENV)/.torch
	@$(PIP) -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(VENV)/.ready-docs
	@$(BIN)/python tools/docs_site.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "build/site/README.html"

$(VENV)/.ready-dist: $(VENV)/.torch
	@$(PIP) -c constraints.txt -e '.[dist]'
	@touch $@

dist: $(VENV)/.ready-dist
	@rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/twine check --strict dist/*

test-wheel: dist
	$(BIN)/python tools/try_wheel.py

clean:
	rm -rf $(VENV) $(CLIENTS) $(VERIFIERS) .demo build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
