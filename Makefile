# Two commands do everything: `make demo` runs the main job, `make test` passes the tests.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
READY = $(VENV)/.ready

.PHONY: demo test quick arm arm-tools compile lint style types contracts clean

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

# the tests of C++ for CPUs once more, as an emulated Arm processor runs it
arm: $(READY)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m pytest -p arm.emulated \
	    tests/ops/test_linear_packed_integers.py tests/ops/test_linear_packed.py \
	    tests/ops/test_grouped_linear_packed.py tests/models/test_one_token.py \
	    -k "integers or instruction_set or codes or one_token_has or threads or gate_over or attend"

# a cross-compiler and an emulator (Debian's packages); tests that need them are skipped without
arm-tools:
	@command -v aarch64-linux-gnu-g++ qemu-aarch64 > /dev/null \
	    || (apt-get update && apt-get install -y g++-aarch64-linux-gnu qemu-user) > /dev/null 2>&1 \
	    || echo "not installed: g++-aarch64-linux-gnu, qemu-user; tests of Arm are skipped"

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
