# make install   create .venv and install Potluck in it
# make test      install what tests need, run them all, in two processes beside one another (tests/lanes.py)
# make check     format, lint and types
# make proto     protocol/pb from protocol/proto
# make settings  peer/SETTINGS.md and coordinator/SETTINGS.md from the settings
# make dist      dist/: the source archive, a wheel with compiled codecs for Linux on x86-64, one for all other machines. Needs uv
# make demo      a host and three peers on this machine, about three minutes
#
# VENV=path      use another environment (it is created when absent)
# PYTHON=path    the Python that makes the environment; the first of 3.11 to 3.14 that is there if not given
# PYTEST_ARGS=.. passed on to pytest
# WORKERS=N      so many processes of tests; 0 for one alone. Each takes 1 GB of memory, what they start 4 GB more
SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for v in 3.11 3.12 3.13 3.14; do "python$$v" -c "" 2>/dev/null && command -v "python$$v" && exit; done; command -v python3)
PYTEST_ARGS ?=
WORKERS ?= 2
# A terminal shows what pip does and how far it is. A log gets one line for each stage.
QUIET := $(shell test -t 2 || echo --quiet)
PIP_INSTALL := $(BIN)/python -m pip install $(QUIET) --disable-pip-version-check -c constraints.txt
INSTALLING = @echo "installing into $(VENV): some minutes the first time; most of it is torch, with CUDA several GB"
INSTALLED = @echo "installed; begin with: . $(BIN)/activate"
# also for what is built from source on the way: hivemind, where it has no wheel
export PIP_CONSTRAINT := build-constraints.txt
export PIP_BUILD_CONSTRAINT := build-constraints.txt
INPUTS := pyproject.toml constraints.txt averaging/codecs/blocks.c averaging/codecs/build_hook.py

.PHONY: help install test check format proto settings dist demo clean

help:
	@sed -n 's/^# //p;/^SHELL/q' Makefile

$(BIN)/python:
	@"$(PYTHON)" -c 'import sys; (3, 11) <= sys.version_info[:2] <= (3, 14) or sys.exit("found Python " + sys.version.split()[0] + "; Potluck needs 3.11 to 3.14; install one, and name it: make $(or $(MAKECMDGOALS),install) PYTHON=/path/to/python3.12")'
	@echo "making the environment $(VENV)"
	@"$(PYTHON)" -m venv "$(VENV)"

$(VENV)/.stamp-install: $(INPUTS) | $(BIN)/python
	$(INSTALLING)
	@$(PIP_INSTALL) -e .
	@touch "$@"
	$(INSTALLED)

$(VENV)/.stamp-test: $(INPUTS) | $(BIN)/python
	$(INSTALLING)
	@$(PIP_INSTALL) -e '.[test]'
	@touch "$@" "$(VENV)/.stamp-install"

$(VENV)/.stamp-dev: $(INPUTS) | $(BIN)/python
	$(INSTALLING)
	@$(PIP_INSTALL) -e '.[test,dev]'
	@touch "$@" "$(VENV)/.stamp-test" "$(VENV)/.stamp-install"

install: $(VENV)/.stamp-install

test: $(VENV)/.stamp-test
	GRPC_VERBOSITY=ERROR $(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

# Fails on what `make format` would change.
check: $(VENV)/.stamp-dev
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy

proto: $(VENV)/.stamp-dev
	$(BIN)/python -m grpc_tools.protoc -Iprotocol/proto --python_out=protocol/pb --pyi_out=protocol/pb protocol/proto/*.proto

settings: $(VENV)/.stamp-install
	$(BIN)/python -m tests.settings_pages

dist: $(VENV)/.stamp-install
	$(BIN)/python -m tests.install build --dir dist

format: $(VENV)/.stamp-dev
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

demo: $(VENV)/.stamp-install
	$(BIN)/potluck demo

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache build dist
