# Everything sets itself up: the first target that needs the environment makes it, from requirements.lock.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: help demo test check bench clean

help:
	@echo "make demo   train on four uneven workers, first evenly, then balanced, and compare"
	@echo "make test   run all tests"
	@echo "make check  run the linters, the format check and the type check"
	@echo "make bench  measure the manager's rounds and the parameter server's transfers"
	@echo "make clean  remove the environment and what runs have left"

demo: $(VENV)/ready
	$(BIN)/evenpace demo --json runs/demo/summary.json

test: $(VENV)/ready
	$(BIN)/pytest

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/ready
	@mkdir -p runs
	$(BIN)/evenpace bench rpc --json runs/bench-rpc.json
	$(BIN)/evenpace bench ps --json runs/bench-ps.json

clean:
	rm -rf $(VENV) runs build *.egg-info

$(VENV)/ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "evenpace needs Python 3.11 or newer; name one with make PYTHON=python3.12 ..."; exit 1; }
	@echo "Setting up $(VENV) (once; PyTorch is large, this takes a minute or more) ..."
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "Python's venv is missing; on Debian: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }
	@$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
