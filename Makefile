# Everything is installed into .venv; nothing else on the machine is touched.
# The first Python from 3.11 on that is found; `make PYTHON=...` takes another.
PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3.14 python3,\
	$(shell $(name) -c 'import sys; sys.version_info >= (3, 11) and print("$(name)")' 2>/dev/null)))
# The address of a package index to take PyTorch from, such as that of its CPU build. Empty: pip's.
TORCH_INDEX ?=
# How many tests run at the same time: one more than cores is best, because some of them wait.
WORKERS ?= 3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Each program that a test or a simulation starts would otherwise compile everything again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo docker-demo test test-engines test-deployment test-docker lint format docs clean

$(VENV)/.installed: pyproject.toml
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "fedrc-flwr needs Python 3.11 or newer: install it, or name it: make PYTHON=..." >&2; \
		exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX),$(BIN)/pip install --quiet --index-url $(TORCH_INDEX) torch torchvision)
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/fedrc simulate --scenario digits

# The same as a federation of containers; needs Docker and nothing else.
docker-demo:
	docker/demo

test: $(VENV)/.installed-dev
	$(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal

# Every algorithm on Flower's simulation engine and in process: about 15 minutes on 2 cores.
test-engines: $(VENV)/.installed-dev
	$(BIN)/pytest -m engines

# A real federation on loopback, its parts killed and restarted: about 15 minutes on 2 cores.
test-deployment: $(VENV)/.installed-dev
	$(BIN)/pytest -m deployment

# The containers on a real engine: about 30 minutes on 2 cores. As root it starts one if need be.
test-docker: $(VENV)/.installed-dev
	$(BIN)/pytest -m docker

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable ".[docs]"
	touch $@

# The settings in docs/config.md and in pyproject.toml (kept in git), the reference of the commands,
# and the pages, in site/.
docs: $(VENV)/.installed-docs
	sed '/^### /,$$d' docs/config.md > docs/config.tmp
	$(BIN)/fedrc config --all >> docs/config.tmp
	mv docs/config.tmp docs/config.md
	sed '/^\[tool\.flwr\.app\.config\]/,$$d' pyproject.toml > pyproject.tmp
	$(BIN)/fedrc config --toml >> pyproject.tmp
	echo >> pyproject.tmp
	sed -n '/^\[tool\.ruff\]/,$$p' pyproject.toml >> pyproject.tmp
	cmp -s pyproject.tmp pyproject.toml || cp pyproject.tmp pyproject.toml
	rm pyproject.tmp
	mkdir -p docs/generated
	$(BIN)/typer fedrc_flwr.cli utils docs --name fedrc --title Commands --output docs/generated/cli.md
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs site

clean:
	rm -rf $(VENV)
