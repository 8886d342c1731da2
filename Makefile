# Every target sets up what it needs; `make run` and `make test` work on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: install run test lint format bench clean
.DEFAULT_GOAL := test

install: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) install --quiet -c constraints.txt -e '.[lab,dev]'
	touch $@

.venv/.bench: .venv/.installed
	$(PIP) install --quiet -c constraints.txt -e '.[bench]'
	$(PIP) install --quiet -c constraints.txt --no-deps opacus
	touch $@

run: install
	$(BIN)/python examples/selection.py

test: install
	$(BIN)/python -m pytest -q

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/pyright

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/.bench
	$(BIN)/python benchmarks/selection.py --out docs/figures

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis dist build
