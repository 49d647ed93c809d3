# Every target works on a fresh clone: it makes .venv, installs the project there (editable, with
# the dev extra) and runs. Needed: Python 3.11 or later, g++, make, and package indexes for pip.
#
#   make test                       everything that must pass, apart from lint
#   make test PYTEST_ARGS="-k x"    arguments for pytest; -n 0: all in one process
#   make test PYTHON=python3.12     the interpreter .venv is made with (when it is made)
#   make demo DEMO_ARGS="--seed 3"  arguments for the demonstration
#   make test WERROR=ON             compiler warnings of the extension are errors

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

ifndef PYTHON
PYTHON := $(shell for p in python3.11 python3; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
endif
PYTEST_ARGS ?=
WERROR ?= OFF

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CONSTRAINTS := constraints-dev.txt
# flashbax, which tests compare with, and what it imports: without optax, orbax, tensorstore and
# uvloop, which it installs for its vaults; uvicorn and others would change their event loop for it.
NO_DEPS := flashbax chex flax etils toolz

# --- environments --------------------------------------------------------------------------------
# Stamps: .venv/.stamp-tools (build tools), .stamp-install (the project), .stamp-dist (build, twine);
# .venv-peers/.stamp-install (the libraries that benchmarks compare with).

TOOLS := $(VENV)/.stamp-tools
INSTALL := $(VENV)/.stamp-install
DIST := $(VENV)/.stamp-dist
PEERS := .venv-peers/.stamp-install

# Directories are listed too: their times change when a file is added or removed.
EXTENSION_SOURCES := $(shell find native -path native/tests -prune -o -print 2>/dev/null)

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or later found: set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(TOOLS): $(CONSTRAINTS) | $(BIN)/python
	$(PIP) install --quiet -c $(CONSTRAINTS) scikit-build-core nanobind cmake ninja numpy
	@touch $@

# Without build isolation the build tools are the pinned ones and the build directory is reused,
# so that a rebuild compiles only what changed.
$(INSTALL): $(TOOLS) $(CONSTRAINTS) pyproject.toml CMakeLists.txt $(EXTENSION_SOURCES)
	$(PIP) install --quiet -c $(CONSTRAINTS) --no-build-isolation \
	  --config-settings=cmake.define.CONTIG_WERROR=$(WERROR) \
	  --config-settings=cmake.define.CONTIG_NATIVE_TESTS=ON -e '.[dev]'
	$(PIP) install --quiet -c $(CONSTRAINTS) --no-deps $(NO_DEPS)
	@touch $@

$(DIST): $(CONSTRAINTS) | $(BIN)/python
	$(PIP) install --quiet -c $(CONSTRAINTS) build twine
	@touch $@

$(PEERS): benchmarks/requirements-peers.txt
	test -x .venv-peers/bin/python || $(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip --disable-pip-version-check install --quiet \
	  -r benchmarks/requirements-peers.txt
	@touch $@

# --- targets -------------------------------------------------------------------------------------

.PHONY: help demo test suites native-test lint format bench docs dist soak examples clean distclean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

DEMO_ARGS ?=
demo: $(INSTALL)  ## Train a recurrent agent on async actors' rows, live (some minutes)
	$(BIN)/python -m contig.cli.main demo --plot build/demo.png $(DEMO_ARGS)

# The dashboard is tested in a browser. Where there is none, and none can be installed, these tests
# are skipped, and say so.
.PHONY: browser
browser:
	@command -v chromedriver > /dev/null || test "$$(id -u)" != 0 || ! command -v apt-get > /dev/null || { \
	  echo "installing chromium for the tests of the dashboard"; \
	  export DEBIAN_FRONTEND=noninteractive; \
	  { timeout 300 apt-get update -qq && timeout 600 apt-get install -y -qq --no-install-recommends \
	    chromium chromium-driver; } > /dev/null 2>&1 || echo "it cannot be installed here"; }

# Two processes share the test files: many tests wait for other processes. If one of them dies, that
# is the end: pytest-xdist may wait for ever for what it was given.
test: $(INSTALL) browser  ## Run the tests (without soak), then native-test
	$(BIN)/python -m pytest -n 2 --dist loadfile --max-worker-restart 0 $(PYTEST_ARGS)
	$(MAKE) native-test

# rsl_rl's tests are in no package: make suites RSL_RL=path/to/rsl_rl, a checkout of the version here.
RSL_RL ?=
SUITE_ARGS ?= -q
suites: $(INSTALL)  ## Run the own tests of stable-baselines3, and of RSL_RL=checkout, on contig's classes
	$(BIN)/python -m tools.sb3_suite $(SUITE_ARGS)
	@if test -n "$(RSL_RL)"; then $(BIN)/python tools/rsl_rl_suite.py "$(RSL_RL)/tests"; \
	  else echo "rsl_rl's own tests are in no package: give RSL_RL=path/to/rsl_rl, a checkout"; fi

# Two processes share the tests one by one: the longest are of one file.
soak: $(INSTALL)  ## Run the long randomised tests (some 90 minutes on 2 cores)
	$(BIN)/python -m pytest -m soak --timeout=0 -n 2 --dist load --max-worker-restart 0 --durations=12 $(PYTEST_ARGS)

lint: $(INSTALL)  ## Run ruff, mypy, import-linter and clang-format, changing nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

format: $(INSTALL)  ## Format the Python and C++ sources in place
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CXX_FILES)

# make bench RECORD=--record: the files of results and the pages that are made of them, too.
RECORD ?=
bench: $(INSTALL) $(PEERS)  ## Run the benchmarks beside the peer libraries
	$(BIN)/python -m benchmarks.run $(RECORD)
	$(BIN)/python -m benchmarks.ingest $(RECORD)
	$(BIN)/python -m benchmarks.trajectory
	$(BIN)/python -m benchmarks.rollout
	$(BIN)/python -m benchmarks.drop_ins $(RECORD)
	$(BIN)/python -m benchmarks.disk
	$(BIN)/python -m benchmarks.codecs
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.collect
	$(BIN)/python -m benchmarks.learn
	$(BIN)/python -m benchmarks.returns
	$(BIN)/python -m benchmarks.devices
	$(BIN)/python -m benchmarks.fields
	$(BIN)/python -m benchmarks.ray_replay
	$(BIN)/python -m benchmarks.cluster
	$(if $(RECORD),$(BIN)/python -m benchmarks.pages)

# mkdocs says on every run that there will be another version of itself, unless told not to.
docs: $(INSTALL)  ## Run every snippet of README.md and docs/, then render docs/
	$(BIN)/python tools/check_snippets.py
	$(BIN)/python tools/check_commands.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	$(BIN)/python tools/check_site.py
	@echo "rendered: build/docs/site/index.html"

# Names of other interpreters: make dist PYTHONS="python3.12 python3.13"
PYTHONS ?=
dist: $(DIST)  ## Build sdist and wheel, check them, install them into clean environments
	$(BIN)/python tools/check_dist.py $(PYTHONS)

examples: $(INSTALL)  ## Run every file of examples/
	@for file in examples/*.py; do echo "== $$file"; $(BIN)/python "$$file"; done

clean:  ## Remove build output and caches; keep the virtual environments
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f $(INSTALL)
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

distclean: clean  ## Remove the virtual environments too
	rm -rf $(VENV) .venv-peers

# --- native tests --------------------------------------------------------------------------------
# build/<wheel tag>: native/tests/*.cpp beside the extension; those that step through appends and
#             repairs instruction by instruction run here.
# build/tsan: native/tests/*_{threads,bytes}.cpp with the thread sanitizer, without Python.
# build/asan: native/tests/*_{threads,bytes}.cpp and the extension, with the address and
#             undefined-behaviour sanitizers. The package loads the extension from
#             CONTIG_NATIVE_PATH if that is set; the sanitizer's runtime must come first in the
#             process, hence LD_PRELOAD (libstdc++ with it, or its interceptor of C++ exceptions
#             finds nothing to call). Reports go to the real stderr, which pytest leaves alone with
#             --capture=sys.

CXX_FILES = $(shell find native -name '*.cpp' -o -name '*.h' -o -name '*.hpp')
CMAKE := $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja

# Fixed addresses where possible: the sanitizers of older compilers fail on kernels that spread
# mappings over more bits than they expect.
FIXED_ADDRESSES := $(shell setarch -R true 2>/dev/null && echo setarch -R)
runtime_library = $(shell $(or $(CXX),g++) -print-file-name=$(1))
ASAN_ENVIRONMENT = \
  LD_PRELOAD="$(call runtime_library,libasan.so) $(call runtime_library,libubsan.so) $(call runtime_library,libstdc++.so.6)" \
  ASAN_OPTIONS=detect_leaks=0 \
  UBSAN_OPTIONS=print_stacktrace=1 \
  PYTHONMALLOC=malloc \
  CONTIG_NATIVE_PATH=$(CURDIR)/build/asan

.PHONY: native-steps native-tsan native-asan
native-test: native-steps native-tsan native-asan  ## Run the native tests, sanitizers included

native-steps: $(INSTALL)
	$(BIN)/cmake --build build/cp*
	$(BIN)/ctest --test-dir build/cp* --exclude-regex '_threads$$' --parallel 2 \
	  --no-tests=error --output-on-failure --timeout 600

native-tsan: $(INSTALL)
	$(CMAKE) -S . -B build/tsan -DCONTIG_PYTHON=OFF -DCONTIG_NATIVE_TESTS=ON \
	  -DCONTIG_SANITIZE=thread
	$(BIN)/cmake --build build/tsan
	TSAN_OPTIONS=halt_on_error=1 $(FIXED_ADDRESSES) $(BIN)/ctest --test-dir build/tsan \
	  --no-tests=error --output-on-failure --timeout 600

native-asan: $(INSTALL)
	$(CMAKE) -S . -B build/asan -DCONTIG_NATIVE_TESTS=ON -DCONTIG_SANITIZE=address,undefined \
	  -DPython_EXECUTABLE=$(CURDIR)/$(BIN)/python
	$(BIN)/cmake --build build/asan
	$(FIXED_ADDRESSES) $(BIN)/ctest --test-dir build/asan --no-tests=error --output-on-failure \
	  --timeout 600
	env $(ASAN_ENVIRONMENT) $(FIXED_ADDRESSES) $(BIN)/python -m pytest tests/kernels \
	  --timeout=600 --capture=sys -p no:cacheprovider
