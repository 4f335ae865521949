# Every target does all its own set-up in .venv, from a fresh clone.
PYTHON ?= python3
BIN := .venv/bin
DATA ?= ../shared/data
# Idle OpenMP threads sleep instead of spinning: on a machine that does anything else, spinning is many times slower.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help demo demo-train demo-publish test lint recipe-en clean
help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

.venv/.installed: pyproject.toml setup.py constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[train,eval,plot,index,dev]'
	@touch $@

demo: .venv/.installed  ## the English model in the box: neighbours, similarities, a tree; offline, seconds
	$(BIN)/python examples/demo.py

demo-train: .venv/.installed  ## from a text file to a model that opens anywhere, in about a minute
	$(BIN)/python examples/train_small.py

demo-publish: .venv/.installed  ## publish models and a space on a Hub of its own, and open them as a stranger would
	$(BIN)/python examples/publish_and_open.py

test: .venv/.installed lint  ## lint, types, unit tests and doctests
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile

lint: .venv/.installed  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

recipe-en: .venv/.installed  ## train and score the English model (needs $(DATA); resumable)
	test -f out/english/config.json || \
		$(BIN)/banyan train $(DATA)/text/en.txt.gz --recipe en --output out/english $(if $(wildcard out/english/run.json),--resume) \
		--eval-sts $(DATA)/eval/dev/sts16.csv
	$(BIN)/python benchmarks/banyan_english.py --model out/english

clean:  ## remove .venv and build outputs; trained models and scores (out/, results/) stay
	rm -rf .venv build dist *.egg-info
