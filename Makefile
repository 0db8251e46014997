# Everything sets itself up: the first target that needs the environment makes it, from requirements.lock.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Compose comes as a plugin of docker's, or on its own. What make base-image has made is preferred, since it
# is made where nothing else can be had.
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
OWN_BASE := evenpace-base:bookworm
BASE_IMAGE ?= $(shell docker image inspect $(OWN_BASE) >/dev/null 2>&1 && echo $(OWN_BASE) || echo python:3.11-slim)

# One process more than there are cores shares the tests, since some wait; each collects them all, which takes half a
# minute of computing. JOBS names another number.
JOBS ?= $(shell echo $$(($$(nproc) + 1)))
PYTEST = $(BIN)/pytest -n $(JOBS)

# Tests start hundreds of processes: what one has compiled, the others need not compile again.
unexport PYTHONDONTWRITEBYTECODE

FUZZ_RUNS ?= 1000000

.PHONY: help demo quick test test-all test-containers simulate fuzz check bench figures docs images image-contention base-image clean
.NOTPARALLEL:

help:
	@echo "make demo   train on four uneven workers, first evenly, then balanced, and compare"
	@echo "make test   run the tests; ONLY=ps takes those of one package, JOBS=4 shares them among four processes"
	@echo "make quick  run the tests that are not slow, on few examples; it takes ONLY and JOBS, too"
	@echo "make test-all  run everything, for a release"
	@echo "make fuzz   try other random examples than the tests do, and many more; $(FUZZ_RUNS) messages, too"
	@echo "make simulate SEED=234  run one job of the simulated cluster again, and log it in virtual time"
	@echo "make check  run the linters, the format check and the type check"
	@echo "make bench  measure the manager's rounds and the parameter server's transfers"
	@echo "make figures  run the paper's table and figures in small, and draw them in one page"
	@echo "make docs   build the documentation site, runs/site/index.html"
	@echo "make clean  remove the environment and what runs have left"
	@echo "With a container engine:"
	@echo "make images            build the images for docker-compose up"
	@echo "make image-contention  build the image of workers with stress-ng, too"
	@echo "make base-image        make a base for them where none can be pulled; as root, before make images"
	@echo "make test-containers   run the tests with containers, on these images"

demo: $(VENV)/ready
	$(BIN)/evenpace demo --json runs/demo/summary.json

test: $(VENV)/ready
	$(PYTEST) $(addprefix tests/,$(ONLY))

quick: $(VENV)/ready
	$(PYTEST) -m 'not slow and not ci and not release and not containers and not gpu' --hypothesis-profile=quick \
		$(addprefix tests/,$(ONLY))

# For a release: what takes long, too.
test-all: $(VENV)/ready
	$(PYTEST) -m 'not containers' --hypothesis-profile=ci
	$(PYTEST) -m simulated --real
	$(BIN)/evenpace lab chaos --minutes 10 --json runs/chaos.json
	$(BIN)/evenpace lab chaos --minutes 2 --deterministic --json runs/chaos-deterministic.json
	$(BIN)/evenpace lab chaos --minutes 2 --lookahead 2 --jobs 2 --workers 3 --json runs/chaos-jobs.json
	$(BIN)/evenpace lab chaos --with all-reduce --minutes 30 --workers 4 --json runs/chaos-all-reduce.json
	$(BIN)/evenpace lab chaos --with all-reduce --minutes 2 --workers 4 --exact --sizer schedule \
		--json runs/chaos-all-reduce-exact.json
	$(MAKE) demo bench figures
	$(MAKE) test-containers

test-containers: $(VENV)/ready
	$(BIN)/pytest -m containers tests/containers

# Steps that fail become a test of their own; a message that fails lies in runs/fuzz.
fuzz: $(VENV)/ready
	$(BIN)/pytest -m machine --hypothesis-profile=search
	@mkdir -p runs/fuzz/corpus
	@$(BIN)/python -c 'import atheris' 2>/dev/null || \
		{ echo "To fuzz messages as well: $(BIN)/pip install atheris"; exit 1; }
	$(BIN)/python -c 'import pathlib, tests.fuzz.messages as m; m.write_corpus(pathlib.Path("runs/fuzz/corpus"))'
	$(BIN)/python -m tests.fuzz.messages -runs=$(FUZZ_RUNS) -max_len=800 -artifact_prefix=runs/fuzz/ runs/fuzz/corpus

# A scenario of the simulated cluster, again, with its log in virtual time.
SEED ?= 0
WITH ?= parameter-server
simulate: $(VENV)/ready
	$(BIN)/python -m tests.simulation $(SEED) --with $(WITH) --log

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/ready
	$(BIN)/evenpace lab bench rpc --json runs/bench-rpc.json
	$(BIN)/evenpace lab bench ps --json runs/bench-ps.json

figures: $(VENV)/ready
	$(BIN)/evenpace lab experiment paper

docs: $(VENV)/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "The site is in runs/site; open runs/site/index.html."

images: $(VENV)/ready
	docker/fetch-wheels $(BIN)/pip
	BASE_IMAGE=$(BASE_IMAGE) $(COMPOSE) build manager ps worker

image-contention: images
	docker build --build-arg BASE_IMAGE=$(BASE_IMAGE) --target worker-contention \
		--file docker/Dockerfile --tag evenpace-worker-contention .

base-image:
	docker/base-image $(OWN_BASE)

clean:
	rm -rf $(VENV) runs build *.egg-info docker/wheels/*.whl docker/wheels/requirements.txt

$(VENV)/ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "evenpace needs Python 3.11 or newer; name one with make PYTHON=python3.12 ..."; exit 1; }
	@echo "Setting up $(VENV) (once; PyTorch is large, this takes a minute or more) ..."
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "Python's venv is missing; on Debian: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }
	@# The lock has all there is to install. All cores compile it, but not the libraries' own tests, a sixth of it;
	@# a few packages have files that do not compile.
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-compile -r requirements.lock
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib || true
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
