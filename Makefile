# One command each: `make demo`, `make demo-win`, `make test`; `make check` runs what CI runs;
# `make calibrate` puts the decision code to the bounds of docs/calibration.md (about twenty minutes on two cores).
# torch comes first, in the version that is tested; `make TORCH=...` takes another, or pip options before it.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
BIN := $(VENV)/bin
# Outcomes are not failures of make: 0 CONFIRMED, 10 REFUTED, 11 INCONCLUSIVE.
OUTCOME = code=$$?; echo "exit code $$code"; case $$code in 0|10|11) exit 0;; *) exit $$code;; esac

.PHONY: demo demo-win test check calibrate clean

demo: $(VENV)/installed
	@$(BIN)/e2e validate workloads/tiny_llama_infer.yaml --kernel kernels/rmsnorm.cpp --policy demo; $(OUTCOME)

demo-win: $(VENV)/installed
	@$(BIN)/e2e validate workloads/planted_slow_op.yaml --kernel kernels/leaky_integrator.cpp --policy demo; $(OUTCOME)

test: $(VENV)/dev
	$(BIN)/python -m pytest -m "not slow and not gpu" -n 2
	$(BIN)/python -m pytest -m "slow and not gpu"

check: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) test

calibrate: $(VENV)/dev
	$(BIN)/python -m tests.calibration --write docs/calibration.md

$(VENV)/torch:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(TORCH)
	touch $@

$(VENV)/installed: $(VENV)/torch pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/dev: $(VENV)/installed pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist
