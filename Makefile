# Needs only Python 3.11 or newer, pip and GNU make; 3.81, which macOS ships, will do. `make` lists the targets.

.PHONY: help setup demo up test soak fuzz check docs bench clean
# Run targets one after another, also under -j: `make clean demo` depends on the order.
.NOTPARALLEL:

help:
	@echo 'make demo    train, forget, and check the certificate: a guided tour'
	@echo 'make up      run the service here until Ctrl-C'
	@echo 'make test    run all tests but those of make soak, and list the slowest ten'
	@echo 'make soak    run the long tests: killed workers and servers, forged logs, changed certificates'
	@echo 'make fuzz    send requests generated from the OpenAPI document for five minutes, as each role'
	@echo 'make check   check rules, format, names, types, imports and migrations'
	@echo 'make docs    write the reference of settings, commands and endpoints'
	@echo 'make bench   measure forgetting against retraining'
	@echo 'make setup   only create .venv; the targets above do so by themselves'
	@echo 'make clean   remove .venv, the caches, and .lethe WITH THE DATA IN IT'
	@echo 'make help    print this list'
	@echo
	@echo 'Options go through ARGS: make up ARGS="--port 9000", make test ARGS="-k word"'
	@echo 'To choose the Python: make clean, then make PYTHON=/path/to/python3.12 setup'

quoted = '$(subst ','\'',$(1))'
# The folder of this file, independent of the working directory. MAKEFILE_LIST separates paths by spaces, and a path may
# contain some, so take the longest suffix of the list that is a file.
ROOT := $(shell list=$(call quoted,$(MAKEFILE_LIST)); \
	while [ ! -f "$$list" ]; do \
	  shorter=$$(printf '%s' "$$list" | sed 's/^[^ ]* //'); \
	  [ "$$shorter" != "$$list" ] || exit 1; \
	  list=$$shorter; \
	done; \
	cd "$$(dirname "$$list")" && pwd -P)
ifeq ($(ROOT),)
$(error Cannot find the folder of this Makefile: change to it and run make there)
endif
IN_ROOT := cd $(call quoted,$(ROOT)) &&
# exec, so that a signal to make reaches the program instead of a shell around it.
RUN := @$(IN_ROOT) exec .venv/bin

demo: setup
	$(RUN)/lethe demo $(ARGS)

up: setup
	$(RUN)/lethe up $(ARGS)

test: setup
	$(RUN)/pytest -m "not soak" -n 3 --dist worksteal --durations=10 $(ARGS)

soak: setup
	$(RUN)/pytest -m soak -n 2 --dist worksteal $(ARGS)

fuzz: setup
	@$(IN_ROOT) exec env FUZZ_SECONDS=75 .venv/bin/pytest -m "" -s tests/service/fuzz $(ARGS)

docs: setup
	$(RUN)/python -m vocabulary.certificate_schema
	$(RUN)/python -m docs.generate

bench: setup
	$(RUN)/lethe bench forget $(ARGS)

check: setup
	@echo 'check: rules'
	$(RUN)/ruff check
	@echo 'check: format'
	$(RUN)/ruff format --check
	@echo 'check: names'
	$(RUN)/python -m tests.check_names
	@echo 'check: types'
	$(RUN)/mypy
	@echo 'check: imports'
	$(RUN)/lint-imports
	@echo 'check: migrations'
	$(RUN)/python -m migrations.check

clean:
	@$(IN_ROOT) rm -rf .venv .lethe build dist *.egg-info \
	  .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@$(IN_ROOT) find . -name .git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

# .venv/stamp holds the folder and the pyproject.toml for which the environment was completed. While pip runs, the same
# text is in .venv/unfinished, so that an environment left by an interruption is recognised and created again.
stamp_text = { pwd; cat pyproject.toml; }
is_ready = $(stamp_text) | cmp -s - .venv/stamp && .venv/bin/python -c ''
# Scripts in .venv/bin contain absolute paths: a copied or moved .venv would run the code of the old folder.
is_in_place = { [ ! -e .venv/stamp ] || [ "$$(head -n 1 .venv/stamp)" = "$$(pwd)" ]; }
is_usable = [ ! -e .venv/unfinished ] && $(is_in_place) && .venv/bin/python -m pip --version

# A command on the PATH need not work: pyenv leaves shims for Pythons that are not installed.
define choose_python
	if [ -n "$$PYTHON" ]; then set -- "$$PYTHON"; else set -- python3.11 python3.12 python3.13 python3; fi; \
	python=; seen=; \
	for candidate do \
	  version=$$("$$candidate" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || continue; \
	  seen="$$seen $$candidate is $$version."; \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "Lethe needs Python 3.11 or newer:$${seen:- none of these runs: $$*.}" >&2; \
	  echo "Install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3.12 ..." >&2; \
	  exit 1; \
	fi
endef

# Debian's Python has no ensurepip; its own pip can then install into the environment.
define make_venv
	"$$python" -m venv .venv || { "$$python" -m venv --without-pip .venv && \
	  "$$python" -m pip --python .venv/bin/python install pip; }
endef

NETWORK_TROUBLE := from versions: none|connection broken|ConnectionError|TimeoutError|ProxyError|IncompleteRead
define explain_failure
	tail -n 15 .venv/setup.log >&2; echo >&2; \
	if grep -Eq '$(NETWORK_TROUBLE)' .venv/setup.log; then \
	  echo 'Setting up failed: no network? pip needs to reach the package index.' >&2; \
	  echo 'Connect this machine, or tell pip about your proxy or mirror, and run make again.' >&2; \
	else \
	  echo 'Setting up failed: see the lines above and all of .venv/setup.log for the reason.' >&2; \
	  echo 'Fix that and run make again.' >&2; \
	fi
endef

setup:
	@$(IN_ROOT) if { $(is_ready); } >/dev/null 2>&1; then exit 0; fi; \
	trap 'exit 130' HUP INT TERM; \
	fresh=; { $(is_usable); } >/dev/null 2>&1 || fresh=yes; \
	if [ "$$fresh" ]; then $(choose_python); rm -rf .venv; mkdir .venv || exit 1; fi; \
	echo 'Setting up .venv (a few minutes the first time) ...'; \
	rm -f .venv/stamp; $(stamp_text) >.venv/unfinished || exit 1; \
	if { [ -z "$$fresh" ] || { $(make_venv); }; } >.venv/setup.log 2>&1 && \
	  .venv/bin/python -m pip install --no-input -e '.[worker,dev]' >>.venv/setup.log 2>&1; \
	then mv .venv/unfinished .venv/stamp; \
	else [ "$$fresh" ] || rm -f .venv/unfinished; $(explain_failure); exit 1; fi
