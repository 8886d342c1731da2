# Every target sets up what it needs; `make run` and `make test` work on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: install run test test-slow compat compat-oldest compat-newest compat-python lint format dist bench docs clean
.DEFAULT_GOAL := test

install: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) install --quiet -c constraints.txt -e '.[lab,dev,docs,lightning,transformers]'
	touch $@

.venv/.bench: .venv/.installed
	$(PIP) install --quiet -c constraints.txt -e '.[bench]'
	$(PIP) install --quiet -c constraints.txt --no-deps opacus
	$(PIP) uninstall --quiet --yes torchvision # BackPACK names it, does not need it, and what fits no torch breaks others
	touch $@

run: install
	$(BIN)/adamcb compare --out runs/rare-events

# At most 6 minutes on two cores. Continuous integration runs the `slow` tests, too.
test: install
	$(BIN)/python -m pytest -q -n auto --dist worksteal

test-slow: install
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m slow

# The versions that we declare, in environments of their own: the oldest, and the newest that there are. A torch for CUDA
# takes 6 GB of disk.
compat: compat-oldest compat-newest compat-python

compat-oldest compat-newest: compat-%:
	$(PYTHON) -m venv .compat/$*
	$(PYTHON) -m tests.compat $* >.compat/$*/constraints.txt
	.compat/$*/bin/python -m pip install --quiet -c .compat/$*/constraints.txt -e '.[lab,dev,lightning,transformers]'
	.compat/$*/bin/python -m pytest -q -n auto --dist worksteal

# Python itself, read and not run: the oldest version that the code needs, and types by the library of each version.
compat-python: install
	$(BIN)/vermin --target=3.10- --no-tips --eval-annotations --exclude long src tests benchmarks examples docs conftest.py
	for version in 3.10 3.11 3.12 3.13 3.14; do $(BIN)/pyright --pythonversion $$version src || exit 1; done

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	git ls-files -z | xargs -0 $(BIN)/codespell # what git ignores, such as runs/, is not ours to spell
	$(BIN)/pyright

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

dist: install
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	$(BIN)/twine check --strict dist/*

bench: .venv/.bench
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m benchmarks.selection --out docs/figures
	$(BIN)/python -m benchmarks.norms
	$(BIN)/python -m benchmarks.optimizer
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.distributed

docs: install # runs the notebooks, then builds site/index.html
	$(BIN)/python docs/notebooks.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

clean:
	rm -rf .venv .compat .pytest_cache .ruff_cache .hypothesis dist build site
