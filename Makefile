# kcover-ebpf: `make help` lists the targets. Each sets up what it needs (tools/setup).
.DEFAULT_GOAL := build
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON := .venv/bin/python
CLANG ?= clang-14
LLVM_STRIP ?= llvm-strip-14
CLANG_FORMAT ?= clang-format-14

# ---- BPF objects: each source once per architecture, shipped inside the Python package

OBJECT_DIR := kcover_ebpf/objects
ARCHITECTURES := x86_64 arm64
bpf_target_x86_64 := __TARGET_ARCH_x86
bpf_target_arm64 := __TARGET_ARCH_arm64

BPF_SOURCES := $(wildcard bpf/*.bpf.c)
OBJECTS := $(foreach arch,$(ARCHITECTURES),\
	$(BPF_SOURCES:bpf/%.bpf.c=$(OBJECT_DIR)/$(arch)/%.bpf.o))
ORPHANS := $(filter-out $(OBJECTS),$(wildcard $(OBJECT_DIR)/*/*.bpf.o))

# linux/types.h wants asm/types.h, which Debian keeps in a folder named after the build machine.
BPF_CFLAGS := -g -O2 -mcpu=v3 -target bpf -Wall -Wextra -Werror -Wno-unused-parameter \
	-ffile-prefix-map=$(CURDIR)=. -isystem /usr/include/$(shell uname -m)-linux-gnu

.PHONY: objects
objects: $(OBJECTS)
	$(if $(ORPHANS),rm -f $(ORPHANS))

define object_rule
$(OBJECT_DIR)/$(1)/%.bpf.o: bpf/%.bpf.c Makefile
	@mkdir -p $$(@D) build/bpf/$(1)
	@echo "  BPF  $$@"
	@$(CLANG) $(BPF_CFLAGS) -D$(bpf_target_$(1)) -MMD -MP -MT $$@ -MF build/bpf/$(1)/$$*.d -c $$< -o $$@
	@$(LLVM_STRIP) -g $$@
endef
$(foreach arch,$(ARCHITECTURES),$(eval $(call object_rule,$(arch))))
-include $(wildcard build/bpf/*/*.d)

# ---- everyday targets

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# A second make, because the compiler may only be there once tools/setup has run.
.PHONY: build
build: setup-build ## set up, compile the BPF objects; then .venv/bin/kcover-ebpf runs
	@$(MAKE) --no-print-directory --silent objects
	@.venv/bin/python -m compileall -q kcover_ebpf # else each start compiles where Python may not write byte code

.PHONY: setup-build setup-demo setup-test setup-vm setup-vm-arm64 setup-image setup-cluster setup-bench setup-docs
setup-build setup-demo setup-test setup-vm setup-vm-arm64 setup-image setup-cluster setup-bench setup-docs: setup-%:
	@tools/setup $*

.PHONY: demo
export FAULT ?= stop
demo: setup-demo build ## train 4 ranks, inject FAULT=stop|kill|lock|loop|skip|blackhole|loader|storage
	@bench/demo/run

.PHONY: demo-cluster
demo-cluster: setup-cluster build ## a real Kubernetes, a hung PyTorchJob: restarted in place, then replaced
	@PYTHONPATH=$(CURDIR) /usr/bin/python3 -m bench.demo.cluster

.PHONY: test test-unit test-kernel test-long test-chart test-vm test-vm-matrix test-drivers test-cluster test-attack test-chaos test-old test-all
test: setup-cluster build ## set up, check, run the tests; builds a Kubernetes the first time
	$(PYTHON) -m tests

test-unit: setup-test build ## the tests that need neither root nor BPF
	$(PYTHON) -m pytest tests/unit -m "not long" --numprocesses=auto --dist=worksteal

test-kernel: setup-test build ## the tests against the running kernel, as root
	$(PYTHON) -m pytest tests/kernel

test-long: setup-test build ## all of tests/unit, with four times the examples of each property, and all of tests/kernel
	$(PYTHON) -m pytest tests/unit --numprocesses=auto --dist=worksteal --hypothesis-profile=thorough
	$(PYTHON) -m pytest tests/kernel

test-chart: setup-cluster build ## the chart at a real API server, which is built the first time
	$(PYTHON) -m pytest tests/chart

test-vm: setup-vm build ## the tests that boot another kernel (6.1) in a virtual machine
	$(PYTHON) -m pytest tests/vm --ignore=tests/vm/test_targets.py --ignore=tests/vm/test_arm64.py

test-vm-matrix: export KCOVER_VM_KERNELS := 5.10 6.1 6.12 newest
test-vm-matrix: setup-vm build ## the same on 5.10, 6.1, 6.12 and the newest kernel to be had
	$(PYTHON) -m pytest tests/vm --ignore=tests/vm/test_targets.py --ignore=tests/vm/test_arm64.py

test-vm-arm64: setup-vm-arm64 build ## the sensor on arm64, in an emulated machine
	$(PYTHON) -m pytest tests/vm/test_arm64.py

test-drivers: setup-vm build ## build real GPU drivers, and search them for the functions that are probed
	$(PYTHON) -m pytest tests/vm/test_targets.py

test-cluster: setup-cluster build ## the tests on a real Kubernetes: that of $KUBECONFIG, or one that is made
	$(PYTHON) -m pytest tests/cluster

test-attack: setup-cluster build ## known attacks on the installed chart, from outside; the cluster as for test-cluster
	$(PYTHON) -m pytest tests/attack

SEED ?= 1
MINUTES ?= 5
test-chaos: setup-cluster build ## faults while all else fails too: SEED=1 MINUTES=5, on a test bed that is removed
	mkdir -p build/chaos
	tools/testbed up --name chaos --controllers none
	bench/chaos/run --name chaos --seed $(SEED) --minutes $(MINUTES) --out build/chaos/seed-$(SEED); \
		status=$$?; tools/testbed down --name chaos; exit $$status

OLD := 1.34
test-old: setup-cluster build ## restarts on the oldest Kubernetes that is supported, which is built
	tools/testbed up --name old --kubernetes $(OLD) --controllers all
	KUBECONFIG=$(CURDIR)/.testbed-old/kubeconfig $(PYTHON) -m pytest tests/cluster/test_kinds.py; \
		status=$$?; tools/testbed down --name old; exit $$status

test-all: test test-long test-chart test-cluster test-attack test-old ## all but virtual machines: what a release must pass

.PHONY: bench bench-quick
bench: setup-bench build ## the whole fault bench (resumable) and the cost bench: hours
	@tools/faultbench/run
	@tools/costbench/run

bench-quick: setup-bench build ## a subset of the fault bench: under 10 minutes
	@tools/faultbench/run --quick

.PHONY: fuzz
SECONDS ?= 60
fuzz: setup-test build ## every parser under a fuzzer, SECONDS=60 each; TARGETS="kmsg tape" for some (x86-64 alone)
	nice -n 19 $(PYTHON) -m tests.fuzz --seconds $(SECONDS) $(TARGETS)

# ---- checks

# the stub's trace header is a page of macros that no formatter understands
C_FILES = $(shell git ls-files -- '*.c' '*.h' ':!tests/vm/stub/trace.h')
PYTHON_TREES = bench contrib kcover_ebpf plugins testbed tests tools

.PHONY: check
check: setup-test ## lint, format, types, layers, links of the documentation
	$(PYTHON) -m tools.docs.links
	$(PYTHON) -m tools.docs.wrap --check
	$(PYTHON) -m ruff check --quiet
	$(PYTHON) -m ruff format --check --quiet
	$(PYTHON) -m mypy $(PYTHON_TREES)
	.venv/bin/lint-imports --no-logo
	$(if $(C_FILES),$(CLANG_FORMAT) --style=file:bpf/.clang-format --dry-run -Werror $(C_FILES))

.PHONY: check-btf
check-btf: setup-test setup-vm build ## each BPF object against the types of Debian's kernels, amd64 and arm64
	PYTHONPATH=$(CURDIR) $(PYTHON) -m tools.btfcheck

.PHONY: format
format: setup-test ## format and repair what a tool can
	$(PYTHON) -m tools.docs.wrap
	$(PYTHON) -m ruff check --quiet --fix-only
	$(PYTHON) -m ruff format --quiet
	$(if $(C_FILES),$(CLANG_FORMAT) --style=file:bpf/.clang-format -i $(C_FILES))

# ---- documentation and releases

.PHONY: docs docs-serve
docs: setup-docs ## the site in build/site, checked strictly, and the manual pages in build/man
	$(PYTHON) -m tools.docs.commands man build/man
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build

docs-serve: docs ## the site at http://127.0.0.1:8000
	$(PYTHON) -m http.server --bind 127.0.0.1 --directory build/site 8000

.PHONY: wheel release test-wheel test-install
# The commit's time, as tools.release takes it: the wheel that is tested and the one that is released are the same bytes.
# Private, because Python would write another kind of byte code in `build` if it saw this.
wheel: private export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
wheel: setup-test build ## a wheel in dist/ that installs without a compiler
	rm -f dist/*.whl
	$(PYTHON) -m hatchling build --target wheel

release: setup-test build ## all that is published, in dist/; signed by the SSH key of KCOVER_SIGNING_KEY
	$(PYTHON) -m tools.release

test-wheel: setup-image wheel ## install and run the wheel on clean Debian 12 and 13, in chroots, as root
	$(PYTHON) -m tools.release.userland

SUITES ?= bookworm trixie noble
test-install: setup-image ## the same with all that `make release` left in dist/, on Ubuntu 24.04 too: SUITES="trixie noble"
	$(PYTHON) -m tools.release.userland $(SUITES)

.PHONY: clean distclean
clean: ## remove build output
	rm -rf build dist $(OBJECT_DIR) .mypy_cache .ruff_cache .pytest_cache .hypothesis

distclean: clean ## remove build output and the Python environments
	rm -rf .venv .bench
