# hasten: everything a person or CI runs. `make help` lists it. PYTHON=... chooses another interpreter than python3.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
PYTEST := $(BIN)/python -m pytest -q
MODEL ?= smollm2
CPP_BUILD := build/cpp-sanitized

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -ec
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help check-prereqs venv demo serve test test-all lint format clean bench check-stub check-cpp

NATIVE_SOURCES := CMakeLists.txt $(shell find csrc -name '*.cc' -o -name '*.h')
CPP_FILES := $(shell find csrc tests -name '*.cc' -o -name '*.h')

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

check-prereqs: ## say what Debian packages are missing
	@$(PYTHON) -V >/dev/null 2>&1 || { echo "missing: $(PYTHON)"; \
	  echo "run:     sudo apt-get install -y python3-venv python3-dev g++ make"; exit 1; }
	@$(PYTHON) scripts/check_prereqs.py

# Each stamp is a file that is newer than all it was made from; a second `make` finds nothing to do.
$(VENV)/.created: | check-prereqs
	@echo "making $(VENV)"
	$(PYTHON) -m venv --clear $(VENV)
	touch $@

$(VENV)/.installed: pyproject.toml scripts/requirements.py $(VENV)/.created
	@echo "installing dependencies"  # modules are compiled when first imported: most never are
	$(BIN)/python scripts/requirements.py build runtime demo > $(VENV)/requirements.txt
	$(PIP) install --no-compile -r $(VENV)/requirements.txt
	touch $@

$(VENV)/.built: $(NATIVE_SOURCES) pyproject.toml $(VENV)/.installed
	@echo "building the extension"
	$(PIP) install --no-build-isolation --no-deps --editable .
	touch $@

$(VENV)/.checkers: pyproject.toml $(VENV)/.installed
	@echo "installing test tools"
	$(BIN)/python scripts/requirements.py test lint > $(VENV)/requirements-test.txt
	$(PIP) install -r $(VENV)/requirements-test.txt
	touch $@

venv: $(VENV)/.built ## .venv with hasten installed and its extension built

demo: $(VENV)/.built ## a real model answers over HTTP, with its timing
	@$(BIN)/python scripts/demo.py

serve: $(VENV)/.built ## the server in the foreground (MODEL=smollm2)
	@exec $(BIN)/hasten serve $(MODEL)

bench: $(VENV)/.built ## a quick measurement of one request (MODEL=smollm2)
	$(BIN)/python benchmarks/single.py --quick

test: lint check-stub $(VENV)/.checkers $(VENV)/.built ## every quick test and check
	$(PYTEST) -m "not full"

lint: $(VENV)/.checkers ## ruff, mypy --strict, clang-format, import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports

format: $(VENV)/.checkers ## write the form that lint asks for
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CPP_FILES)

check-stub: $(VENV)/.built ## the committed _kernels.pyi is what the build makes
	@made=$$(ls -t build/cp*/_kernels.pyi | head -1); \
	  diff -u src/hasten/_kernels.pyi "$$made" || { echo "run: cp $$made src/hasten/_kernels.pyi"; exit 1; }

$(VENV)/.oracles: pyproject.toml $(VENV)/.checkers
	@echo "installing torch, transformers and playwright"
	$(BIN)/python scripts/requirements.py build runtime demo test lint oracle browser > $(VENV)/requirements-oracle.txt
	$(PIP) install -r $(VENV)/requirements-oracle.txt
	touch $@

test-all: check-cpp $(VENV)/.oracles $(VENV)/.built ## all tests: torch oracles, sanitizers, a browser, long runs
	$(PYTEST)

check-cpp: $(VENV)/.built ## the C++ tests under ASan and UBSan, AVX512 kernels emulated (needs libsimde-dev)
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake -S . -B $(CPP_BUILD) -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DHASTEN_PYTHON=OFF -DHASTEN_CPP_TESTS=ON -DHASTEN_EMULATE_AVX512=ON -DHASTEN_SANITIZE=address,undefined > /dev/null
	PATH="$(CURDIR)/$(BIN):$$PATH" cmake --build $(CPP_BUILD) --parallel 2
	PATH="$(CURDIR)/$(BIN):$$PATH" ctest --test-dir $(CPP_BUILD) --output-on-failure --no-tests=error

clean: ## remove what was built and installed here, never a model
	rm -rf $(VENV) build dist results .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
