# Everything from a bare clone. Works with GNU Make 3.81 and bash 3.2.
#
#   make lab-up PYTHON=python3.12      another Python than the first fitting one on PATH

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
LAB := $(VENV)/bin/lab
STAMP := $(VENV)/.complete
PYTHON ?= $(firstword $(foreach p,python3.13 python3.12 python3.11 python3,\
            $(shell $(p) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
                    >/dev/null 2>&1 && echo $(p))))

# Set where an engine answers; asked for once, and only by the targets that want to know.
ENGINE = $(shell docker info >/dev/null 2>&1 && echo yes)

.PHONY: help setup lab-up lab-down lab-logs slurm-lab ssh-lab test test-fast test-all lint clean

help: ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make the virtual environment (the other targets do it by themselves)

$(STAMP): pyproject.toml docker/install-torch docker/requirements.txt
	@if ! "$(or $(PYTHON),false)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then \
	  echo "lab needs Python 3.11, 3.12 or 3.13; $(if $(PYTHON),$(PYTHON) is not one,none is on PATH): make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; \
	  exit 1; \
	fi
	@echo "setting up $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@docker/install-torch $(VENV)/bin/python
	@$(VENV)/bin/python -m pip install --quiet -c docker/requirements.txt -e '.[train,dev]'
	@touch $@

lab-up: $(STAMP) ## bring four nodes up, train on the Wine data, prove it equal to one process
	@if docker info >/dev/null 2>&1; then \
	  place=docker; echo "lab: a Docker engine answers: the nodes are containers"; \
	else \
	  place=local; echo "lab: no Docker engine answers: the nodes are processes on this machine"; \
	fi; \
	set -e; \
	$(LAB) up --on $$place; \
	$(LAB) run --on $$place; \
	$(LAB) prove --on $$place; \
	on=; if [ $$place = local ]; then on=' --on local'; fi; \
	echo "The nodes are up. Next: $(LAB) run$$on your_script.py"

lab-down: $(STAMP) ## remove the nodes
	@if docker info >/dev/null 2>&1; then $(LAB) down; else $(LAB) down --on local; fi

ssh-lab: $(STAMP) ## bring up containers with SSH servers, to rehearse bare metal: lab run -t ssh-lab
	@$(VENV)/bin/python -P -m lab.cli.ssh_lab

slurm-lab: $(STAMP) ## bring up a Slurm cluster of containers for this folder: lab run -t slurm-lab
	@$(LAB) up -t slurm-lab

lab-logs: $(STAMP) ## what the ranks of the latest run wrote
	@$(LAB) logs

# Without an engine the docker tests cannot run; under CI they fail then, rather than being left out.
NO_DOCKER = $(if $(ENGINE),,$(if $(CI),,-m 'not docker and not slow'))
NO_DOCKER_ALL = $(if $(ENGINE),,$(if $(CI),,-m 'not docker'))
SAY_NO_DOCKER = $(if $(ENGINE),,$(if $(CI),,echo "no Docker engine answers: the tests that need one are left out";))

test: $(STAMP) ## all tests but the slow ones
	@$(SAY_NO_DOCKER) $(VENV)/bin/python -m pytest $(or $(NO_DOCKER),-m 'not slow') $(ARGS)

test-fast: $(STAMP) ## only the tests that need no engine
	@$(VENV)/bin/python -m pytest -m 'not docker and not slow' $(ARGS)

test-all: $(STAMP) ## all tests, the slow ones too
	@$(SAY_NO_DOCKER) $(VENV)/bin/python -m pytest $(NO_DOCKER_ALL) $(ARGS)

lint: $(STAMP) ## style and types
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy

clean: ## remove what make made: the environment, caches; not your runs
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
