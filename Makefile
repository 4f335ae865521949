# Every target does all its own set-up in .venv, from a fresh clone.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test lint clean
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,eval,plot,dev]'
	@touch $@

demo: .venv/.installed  ## the main job, offline, in a few minutes
	$(BIN)/python examples/demo.py

test: .venv/.installed lint  ## lint, types, unit tests and doctests
	$(BIN)/python -m pytest

lint: .venv/.installed  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:  ## remove .venv and build outputs
	rm -rf .venv build dist out results *.egg-info
