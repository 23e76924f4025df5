# Everything runs from .venv, which `make install` fills with the versions of requirements.lock.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2
export OMP_NUM_THREADS ?= 1

.PHONY: help install quickstart test test-slow test-harness lint format docs lock surface clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1|/' | column -t -s '|'

install: $(STAMP) ## .venv with the locked versions and .venv/bin/anchorlm

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "anchorlm needs Python 3.11 or newer; set PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the versions of requirements.lock into $(VENV): about 1 GB, some minutes"
	$(BIN)/python -m pip install --quiet -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

quickstart: install ## the main job on a packaged real model
	@env -u OMP_NUM_THREADS $(BIN)/anchorlm quickstart

lint: install ## style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: install ## put style and format right where a tool can
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format --quiet .

docs: install ## the documentation, strictly, into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test: lint docs ## lint, types, docs and every quick test
	time $(BIN)/pytest -n $(WORKERS) --durations=15

test-slow: install ## the tests that take longer
	time $(BIN)/pytest -n $(WORKERS) -m slow --durations=15

test-harness: install ## lm-evaluation-harness, put into .venv first, beside our own scorer; real questions: ANCHORLM_TEST_DATA=FOLDER
	$(BIN)/python -m pip install --quiet 'lm-eval==0.4.13'
	$(BIN)/pytest tests/eval/test_lm_eval.py -m 'slow or not slow' -s

lock: install ## write requirements.lock from what .venv holds
	$(BIN)/python tools/lock.py

surface: install ## accept a changed public surface (names, flags, keys)
	$(BIN)/python tests/test_surface.py

clean: ## remove what the tools wrote, keep .venv
	rm -rf site build dist .pytest_cache .ruff_cache .hypothesis
