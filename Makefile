# Every target prepares what it needs, once. `make help` lists them.
SHELL  := /bin/bash
PYTHON ?= python3
BIN    := .venv/bin
ARGS   ?=

# A venv holds absolute paths: in a checkout that was moved it is made anew.
HERE := $(shell pwd -P | cksum | cut -d' ' -f1)
VENV := .venv/made-for-$(HERE)
DEPS := .venv/dependencies-$(HERE)
SELF := .venv/onceonly-$(HERE)
JARS := .jars/complete
WRITER := src/onceonly/spark/jars/onceonly-jvm.jar
PACKAGES := $(wildcard packages/*)
SITE := .venv-docs/made-for-$(HERE)

.PHONY: help setup demo demo-cluster test unit heavy crash lint format chaos bench trial matrix wheel explore mutants docs lock clean
# Processes that tests start would compile this package again, each by itself, where bytecode is not kept.
test unit heavy crash: export PYTHONDONTWRITEBYTECODE :=
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1@/p' $(firstword $(MAKEFILE_LIST)) | column -t -s@

setup: $(SELF) $(JARS)  ## the environment in .venv and the jars in .jars
	@:

demo: setup  ## the pipeline with everything it needs, on this machine; EXIT=1 ends when it is done
	$(BIN)/onceonly demo run $(if $(EXIT),--exit)

demo-cluster: setup  ## the same with everything on S3 and each stage on YARN; needs versitygw
	PYTHONPATH=tests $(BIN)/python -m trials.cluster

test: setup  ## unit, contract, integration: all but the heavy ones; ARGS='-k name' selects
	$(BIN)/pytest -m 'not heavy' -n 4 --dist loadfile --no-loadscope-reorder --durations 20 $(ARGS)

unit: setup  ## the tests that need no service, on a state table in memory
	ONCEONLY_UNIT=quick $(BIN)/pytest tests/unit -m "not slow" -q -n 2 --dist loadfile $(ARGS)

heavy: setup  ## the tests that take minutes each on real services, of which `make test` takes some; ARGS='-k name' selects
	$(BIN)/pytest -m heavy -n 2 --dist loadfile --durations 20 $(ARGS)

crash: setup  ## processes killed at every point, of which `make test` takes a sample; ARGS='-k kafka' selects
	ONCEONLY_CRASH=whole $(BIN)/pytest -m crash -n 2 --dist loadfile --durations 10 $(ARGS)

chaos: setup  ## everything around a pipeline is broken for MINUTES=10, and what came of it is checked; SEED=7 repeats a run
	$(BIN)/python -m onceonly.testing.chaos --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(ARGS)

lint: $(SELF)  ## style, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(SELF)  ## let ruff mend what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup  ## against the alternatives, side by side; ARGS=names of some
	PYTHONPATH=tests $(BIN)/python -m benchmarks $(ARGS)

trial: setup  ## minutes on a real Airflow, killed and interfered with: ARGS=backfill
	PYTHONPATH=tests $(BIN)/python -m trials $(ARGS)

matrix: setup  ## a pipeline killed and recovered on each version that people run, and the table of it; ARGS=spark-3.5
	PYTHONPATH=tests:. $(BIN)/python -m matrix $(ARGS)

wheel: setup  ## the package installed with its extras from the package index, and a new project run there
	ONCEONLY_WHEEL=index $(BIN)/pytest tests/integration/test_wheel.py -v $(ARGS)

explore: setup  ## every schedule of a few processes, up to a bound; ARGS="--replay ID", or names of scenarios
	PYTHONPATH=tests $(BIN)/python -m explore $(ARGS)

mutants: setup  ## each guard of the core taken out: some schedule has to notice; ARGS=words of names
	PYTHONPATH=tests $(BIN)/python -m explore.mutate $(ARGS)

docs: $(SITE)  ## the documentation as a site in site/, in an environment of its own
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict $(ARGS)

lock: $(DEPS)  ## requirements.in -> requirements.lock, and the same for requirements-docs
	for name in requirements requirements-docs; do \
	  $(BIN)/uv pip compile $$name.in -o $$name.lock --universal --python-version 3.11 \
	    --no-emit-index-url --custom-compile-command "make lock" --quiet $(ARGS) || exit 1; done

clean:  ## remove what make has made
	rm -rf .venv .venv-docs .jars site

$(VENV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Python 3.11 or newer is missing: install it, or make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^uv==' requirements.lock)"
	@touch $@

$(DEPS): requirements.lock | $(VENV)
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python requirements.lock
	@touch $@

$(SELF): $(DEPS) pyproject.toml $(PACKAGES:=/pyproject.toml)
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable . $(addprefix --editable ,$(PACKAGES))
	@touch $@

$(SITE): requirements-docs.lock
	$(PYTHON) -m venv --clear .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.lock
	@touch $@

$(WRITER): $(shell find src/java -name '*.java') tools/compile_java.py src/onceonly/spark/jars/ivy.xml | $(SELF)
	ONCEONLY_JARS=.jars $(BIN)/onceonly jars fetch spark compiler
	ONCEONLY_JARS=.jars $(BIN)/python tools/compile_java.py
	@touch $@

# Another Spark or Java takes other prepared classes: that is seen by `jars prepare`, after each change of the environment.
$(JARS): $(WRITER) src/onceonly/spark/jars/ivy.xml src/onceonly/spark/jars/ivysettings.xml src/onceonly/spark/training.py $(DEPS) | $(SELF)
	ONCEONLY_JARS=.jars $(BIN)/onceonly jars fetch spark broker s3 hdfs
	ONCEONLY_JARS=.jars $(BIN)/onceonly jars prepare || echo "Everything works without prepared classes."
	@touch $@
