# make demo   sets everything up and trains a small model end to end
# make test   sets everything up, lints, checks types and imports, runs the tests
# make test-floors   runs the tests with the lowest versions that pyproject.toml allows, in .venv-floors
# make lint   only the checks that take seconds
# make trial-kills   kills a training 60 times; it must end as if it had not been killed (minutes)
# make bench  measures this package and transformers' own classes side by side (about 20 minutes)
# make conformance   runs the tests that transformers runs on its own models, on ours (slow, needs the package index)
PYTHON ?= python3
BIN := .venv/bin
FLOORS := .venv-floors/bin

.PHONY: demo test test-floors lint bench trial-kills conformance clean

demo: .venv/installed
	$(BIN)/hf-vanilla train configs/quickstart.yaml
	@printf '%s\n' 'the twenty third of march two thousand and five' 'quarter to nine in the evening' \
		'three hundred and five pounds' 'the one hundred and twelfth' > runs/said.txt
	@$(BIN)/hf-vanilla translate runs/quickstart --input runs/said.txt --output runs/written.txt
	@paste runs/said.txt runs/written.txt

test: lint
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest

test-floors: .venv-floors/installed
	@echo "Tested with (PyTorch is that of constraints.txt, not the lowest: older builds for the CPU are hard to find):"
	@$(FLOORS)/pip freeze --exclude-editable --requirement .venv-floors/constraints.txt | sed '/pip freeze/,$$d'
	HF_HUB_OFFLINE=1 $(FLOORS)/python -m pytest

lint: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/installed
	$(BIN)/hf-vanilla benchmark start
	$(BIN)/hf-vanilla benchmark training configs/quickstart.yaml
	test -f runs/quickstart/report.json || $(BIN)/hf-vanilla train configs/quickstart.yaml
	$(BIN)/hf-vanilla benchmark generation runs/quickstart
	$(BIN)/hf-vanilla benchmark growth --rounds 1

conformance: .venv/installed
	$(BIN)/python scripts/conformance.py

trial-kills: .venv/installed
	rm -rf runs/trial-kills
	HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 $(BIN)/python tests/training/trial_kills.py runs/trial-kills --kills 60 --inside-saves 20

# On Linux, pip may take PyTorch's build with CUDA, of some gigabytes. It works without a GPU, too. For the smaller build
# for CPUs name its index, as pytorch.org says: PIP_EXTRA_INDEX_URL=... make test
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

.venv-floors/installed: pyproject.toml constraints.txt scripts/floors.py | .venv/installed
	$(PYTHON) -m venv .venv-floors
	$(FLOORS)/python scripts/floors.py > .venv-floors/constraints.txt
	$(FLOORS)/pip install --quiet --constraint .venv-floors/constraints.txt torch
	$(FLOORS)/pip install --quiet --constraint .venv-floors/constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-floors build *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis runs
