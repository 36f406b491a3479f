# make install   create .venv and install Potluck in it
# make test      install what tests need, run them all, in two processes beside one another (tests/lanes.py)
# make check     format, lint and types
# make proto     protocol/pb from protocol/proto
# make settings  peer/SETTINGS.md and coordinator/SETTINGS.md from the settings
# make dist      dist/: the source archive, a wheel with compiled codecs for Linux on x86-64, one for all other machines. Needs uv
# make demo      a host and three peers on this machine, about three minutes
#
# VENV=path      use another environment (it is created when absent)
# PYTEST_ARGS=.. passed on to pytest
# WORKERS=N      so many processes of tests; 0 for one alone. Each takes 1 GB of memory, what they start 4 GB more
SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PYTEST_ARGS ?=
WORKERS ?= 2
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
INPUTS := pyproject.toml constraints.txt averaging/codecs/blocks.c averaging/codecs/build_hook.py

.PHONY: help install test check format proto settings dist demo clean

help:
	@sed -n 's/^# //p;/^SHELL/q' Makefile

$(BIN)/python:
	@"$(PYTHON)" -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Potluck needs Python 3.11 or newer; found " + sys.version)'
	"$(PYTHON)" -m venv "$(VENV)"
	@echo "installing into $(VENV) takes some minutes; most of it is torch, with CUDA several GB"

$(VENV)/.stamp-install: $(INPUTS) | $(BIN)/python
	$(PIP_INSTALL) -e .
	@touch "$@"

$(VENV)/.stamp-test: $(INPUTS) | $(BIN)/python
	$(PIP_INSTALL) -e '.[test]'
	@touch "$@" "$(VENV)/.stamp-install"

$(VENV)/.stamp-dev: $(INPUTS) | $(BIN)/python
	$(PIP_INSTALL) -e '.[test,dev]'
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
