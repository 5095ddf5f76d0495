# Two commands do everything: `make demo` runs the main job, `make test` passes the tests.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: demo test quick compile lint style types contracts clean

demo: $(READY)
	$(BIN)/tercet fetch smollm2-135m
	$(BIN)/python -m tercet.workflows.demo demo

test: $(READY)
	$(BIN)/tercet fetch smollm2-135m
	$(BIN)/tercet fetch minilm-l6
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist worksteal

# what differs from BASE can break these tests; at most a minute, the most direct first
BASE ?= main
quick: $(READY)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m quick --base $(BASE)

# every kernel for every target, whatever the digests of accepted ones say
compile: $(READY)
	$(BIN)/tercet kernel compile --all

lint: style types contracts

style: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY)
	$(BIN)/pyright

contracts: $(READY)
	$(BIN)/lint-imports

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13) and "Python 3.11 or 3.12 is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV) || (echo "no venv module: apt install python3-venv" && false)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) demo build
