# Every target sets up what it needs; `make run` and `make test` work on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: install run test lint format bench docs clean
.DEFAULT_GOAL := test

install: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) install --quiet -c constraints.txt -e '.[lab,dev,lightning,transformers]'
	touch $@

.venv/.bench: .venv/.installed
	$(PIP) install --quiet -c constraints.txt -e '.[bench]'
	$(PIP) install --quiet -c constraints.txt --no-deps opacus
	$(PIP) uninstall --quiet --yes torchvision # BackPACK names it, does not need it, and what fits no torch breaks others
	touch $@

run: install
	$(BIN)/adamcb compare --out runs/digits

test: install
	$(BIN)/python -m pytest -q -n auto --dist loadfile

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/pyright

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/.bench
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m benchmarks.selection --out docs/figures
	$(BIN)/python -m benchmarks.norms
	$(BIN)/python -m benchmarks.optimizer
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.distributed

docs: install
	$(BIN)/python -m pytest -q tests/test_docs.py

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis dist build
