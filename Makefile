# GNU Make. `make help` lists the targets.
#
# Everything built goes under $(BUILD); nothing is written beside the sources. Sources are found by
# wildcard, so a new file in a directory belongs to what that directory makes.

comma := ,
empty :=

# As many jobs as there are processors, unless make was told how many.
ifeq ($(filter -j%,$(MAKEFLAGS))$(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc)
endif

CC       ?= cc
SANITIZE ?=
# What sanitizers put into code takes the optimiser longer than it saves the tests.
CFLAGS   ?= $(if $(SANITIZE),-O1,-O2) -g
PREFIX   ?= /usr/local
LIBDIR   ?= $(PREFIX)/lib
VERSION  := 0.1.0
DEBUG    ?=
NCURSES  ?= -lncursesw
BUILD    ?= build$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))$(if $(DEBUG),-debug)

# A pool that breaks one of its rules, as tests/mutations/run.sh wishes (MUTATIONS=1), or does without
# one of its heuristics, as tests/bench/heuristics.py wishes (HEURISTICS=1), is built of a copy of core/
# and shim/ with the edits of all of them, which is brought up to date whenever make reads this.
SOURCE :=
EDITS := $(if $(MUTATIONS),tests/mutations,$(if $(HEURISTICS),tests/bench/heuristics))
ifneq ($(EDITS),)
override BUILD := build-$(notdir $(EDITS))
SOURCE := $(BUILD)/source/
COPIED := $(shell tests/mutations/apply.py copy $(SOURCE) $(EDITS) && echo yes)
ifneq ($(COPIED),yes)
$(error $(EDITS): no copy of the sources could be made)
endif
endif

# Where a toolkit's <cuda.h> is, if there is one: it is needed for nothing but comparing our
# declarations with it, and for the programs of tests/gpu and tests/bench that are in CUDA C++.
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(shell command -v nvcc 2>/dev/null))
NVCC      ?= $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc /usr/local/cuda/bin/nvcc))
CUDA_INCLUDE := $(dir $(firstword $(wildcard $(CUDA_HOME)/include/cuda.h \
                                             /usr/local/cuda/include/cuda.h)))

# One line for each thing that is made; `make V=1` shows the commands.
say := @$(if $(V),:,printf '  %-5s %s\n')
Q   := $(if $(V),,@)

WARNINGS := -Wall -Wextra -Wshadow -Wconversion -Werror
# Headers of another directory are named from the root.
COMPILE  := $(CC) -std=gnu17 $(WARNINGS) -D_GNU_SOURCE= $(SOURCE:%=-I%) -I. -MMD -MP $(CPPFLAGS) $(CFLAGS)
LINK     := $(CC) $(CFLAGS) $(LDFLAGS)

ifneq ($(SANITIZE),)
ifneq ($(filter-out address undefined thread fuzzer,$(subst $(comma),$(empty) ,$(SANITIZE))),)
$(error SANITIZE=$(SANITIZE): must be address, undefined, thread or address,undefined)
endif
# What `make fuzz` builds with: both sanitizers that go together, and the counters that guide it.
SANITIZERS := $(if $(filter fuzzer,$(SANITIZE)),address$(comma)undefined,$(SANITIZE))
COMPILE += -fsanitize=$(SANITIZERS)$(if $(filter fuzzer,$(SANITIZE)),$(comma)fuzzer-no-link)
COMPILE += -fno-omit-frame-pointer -fno-sanitize-recover=all
LINK    += -fsanitize=$(SANITIZERS)
# A program may load the pool later: clang's AddressSanitizer is a library here, as gcc's is.
ifneq ($(and $(filter address%,$(SANITIZE)),$(findstring clang,$(CC))),)
CLANG_RUNTIME := $(shell $(CC) -print-file-name=libclang_rt.asan-$(shell uname -m).so)
SHARED_RUNTIME := -shared-libasan -Wl,-rpath,$(patsubst %/,%,$(dir $(CLANG_RUNTIME)))
COMPILE += $(SHARED_RUNTIME) -Wno-unused-command-line-argument
LINK    += $(SHARED_RUNTIME)
endif
endif

# Where speed does not matter, every lock is checked as it is taken: see core/base/lock.h.
ifneq ($(SANITIZE)$(DEBUG),)
COMPILE += -DCUDAPOOL_CHECK_LOCKS
endif

# Hidden symbols keep the pool out of the program's sight. The initial-exec model makes reading a
# thread-local variable one instruction, and free of calls into the dynamic linker.
VERSION_FLAG := -DCUDAPOOL_VERSION='"$(VERSION)"'
POOL_FLAGS := $(VERSION_FLAG) -fPIC -fvisibility=hidden -ftls-model=initial-exec -pthread
SIM_FLAGS  := -fPIC -pthread
TEST_FLAGS := -pthread -Itests
# tests/unit has a directory for each of core/, and one for what all of them start from.
UNIT_FLAGS := $(TEST_FLAGS) -Itests/unit/fixtures

# --- what is there ------------------------------------------------------------------------------

CORE_SOURCES  := $(wildcard core/*/*.c) $(if $(EDITS),tests/mutations/mutation.c)
JSON_SOURCES  := $(wildcard core/*/*_json.c)
SHIM_SOURCES  := $(filter-out shim/abi_check.c,$(wildcard shim/*.c shim/*.S))
TOOL_SOURCES  := $(wildcard tools/*.c tools/*/*.c)
SIM_SOURCES   := $(filter-out tests/sim/abi_check.c tests/sim/shared_main.c,$(wildcard tests/sim/*.c))
CONFORMANCE_SOURCES := $(wildcard tests/conformance/*.c)
NEIGHBOURS_SOURCES := $(wildcard tests/random/neighbours*.c)
RANDOM_SOURCES := $(filter-out $(NEIGHBOURS_SOURCES),$(wildcard tests/random/*.c))
UNIT_SOURCES  := $(wildcard tests/unit/*/test_*.c)
ABI_CHECKS    := $(if $(CUDA_INCLUDE),$(wildcard shim/abi_check.c tests/sim/abi_check.c))

# Plain programs: one executable for each source; a source named lib*.c makes a shared library.
PROGRAM_SOURCES := $(wildcard tests/e2e/*.c tests/gpu/*.c tests/bench/*.c)
LIBRARY_SOURCES := $(filter tests/e2e/lib%.c tests/bench/lib%.c,$(PROGRAM_SOURCES))
LIBRARIES := $(patsubst %.c,$(BUILD)/%.so,$(LIBRARY_SOURCES))
PROGRAMS  := $(patsubst %.c,$(BUILD)/%,$(filter-out $(LIBRARY_SOURCES),$(PROGRAM_SOURCES)))
DEMOS     := $(patsubst tests/demo/%.c,$(BUILD)/demo/%,$(wildcard tests/demo/*.c))
CUDA_PROGRAMS := $(patsubst %.cu,$(BUILD)/%,$(wildcard tests/gpu/*.cu tests/bench/*.cu))
UNIT_TESTS  := $(patsubst tests/unit/%.c,$(BUILD)/tests/unit/%,$(UNIT_SOURCES))
PLAIN_TESTS := $(patsubst tests/unit/%.c,$(BUILD)/tests/unit-plain/%,$(UNIT_SOURCES))
CONFORMANCE := $(if $(CONFORMANCE_SOURCES),$(BUILD)/tests/conformance/conformance)

# A fuzz target with a main that replays files, and the same with libFuzzer's.
FUZZ_SHARED  := tests/fuzz/replay.c
FUZZ_SOURCES := $(filter-out $(FUZZ_SHARED),$(wildcard tests/fuzz/*.c))
FUZZ_REPLAYS := $(patsubst %.c,$(BUILD)/%,$(FUZZ_SOURCES))
FUZZERS      := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzzers/%,$(FUZZ_SOURCES))

# What make bench compares allocators with. Those from elsewhere are built where they are found.
BENCH_SOURCES := $(wildcard tests/bench/worker/*.c)
WORKER := $(BUILD)/tests/bench/worker/worker
MIMALLOC := $(firstword $(wildcard /usr/lib/*-linux-gnu/libmimalloc.so.2))
BENCH_PEERS := $(if $(NVCC),$(BUILD)/tests/bench/peers/cub.so) \
               $(if $(MIMALLOC),$(BUILD)/tests/bench/libmimalloc.so.2)

RANDOM := $(if $(RANDOM_SOURCES),$(BUILD)/tests/random/random)
NEIGHBOURS := $(if $(NEIGHBOURS_SOURCES),$(BUILD)/tests/random/neighbours)

object = $(patsubst %,$(BUILD)/obj/%.o,$(basename $(1)))

CORE_OBJECTS := $(call object,$(CORE_SOURCES))
# What unit tests share: every source of theirs that is not a test itself.
UNIT_OBJECTS := $(call object,$(filter-out $(UNIT_SOURCES),$(wildcard tests/unit/*/*.c)))
.SECONDARY: $(UNIT_OBJECTS) $(call object,$(wildcard tests/fuzz/*.c))
JSON_OBJECTS := $(call object,$(JSON_SOURCES))
SHIM_OBJECTS := $(call object,$(SHIM_SOURCES))
TOOL_OBJECTS := $(call object,$(TOOL_SOURCES))
CONFORMANCE_OBJECTS := $(call object,$(CONFORMANCE_SOURCES))
RANDOM_OBJECTS := $(call object,$(RANDOM_SOURCES))
NEIGHBOURS_OBJECTS := $(call object,$(NEIGHBOURS_SOURCES))
WORKER_OBJECTS := $(call object,$(BENCH_SOURCES))

PRELOAD := $(BUILD)/libcudapool_preload.so
CONFIG  := $(BUILD)/libcudapool_config.so
TOOL    := $(BUILD)/cudapool
SETTINGS_SCHEMA := $(BUILD)/packaging/settings_schema
SIM     := $(BUILD)/sim/libcuda.so.1
SIM_VARIANTS := $(BUILD)/sim-old/libcuda.so.1 $(BUILD)/sim-12.4/libcuda.so.1

PRODUCTS := $(if $(SHIM_SOURCES),$(PRELOAD)) $(if $(JSON_SOURCES),$(CONFIG)) \
            $(if $(TOOL_SOURCES),$(TOOL))
SIMS     := $(if $(SIM_SOURCES),$(SIM) $(SIM_VARIANTS) $(BUILD)/sim/shared)

# --- targets that a person types ----------------------------------------------------------------

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.PHONY: all library sim programs gpu unit plain replays fuzzers abi-check test random mutations proof fuzz \
        coverage demo bench install uninstall deb layers lint format settings cross clean help dependencies

all: library sim programs ## build everything but the unit tests
library: $(PRODUCTS) abi-check ## build the preload object, its settings reader and the command
sim: $(SIMS) ## build the CUDA driver on the CPU
programs: $(SETTINGS_SCHEMA) $(if $(SIM_SOURCES),$(DEMOS) $(PROGRAMS) $(LIBRARIES) $(CONFORMANCE) $(RANDOM) $(NEIGHBOURS) $(WORKER)) ## build demo and test programs
gpu: all $(if $(NVCC),$(CUDA_PROGRAMS)) $(BENCH_PEERS) ## build what tests/gpu/run.sh and tests/bench run on a machine with a GPU
unit: $(UNIT_TESTS) ## build the unit tests (needs Criterion)
plain: $(PLAIN_TESTS) ## build the unit tests with the small runner in tests/plain instead of Criterion
replays: $(FUZZ_REPLAYS) ## build the fuzz targets, to replay inputs without a fuzzer
fuzzers: $(FUZZERS)
abi-check: $(call object,$(ABI_CHECKS))

test: all replays $(if $(SANITIZE),plain,unit) ## run all tests; SANITIZE=address|undefined|thread|address,undefined
	@BUILD=$(BUILD) SANITIZE=$(SANITIZE) CC="$(CC)" scripts/run_tests.sh

SEEDS   ?= 1-
MINUTES ?= 2
random: library $(RANDOM) $(NEIGHBOURS) ## run random programs with and without the pool, in turns, freely and in processes that share a device or a limit: SEEDS=1-100 MINUTES=2 (each)
	@$(RANDOM) seeds=$(SEEDS) minutes=$(MINUTES) jobs=$(or $(JOBS),$(shell nproc))
	@$(RANDOM) free seeds=$(SEEDS) minutes=$(MINUTES) jobs=$(or $(JOBS),$(shell nproc))
	@$(NEIGHBOURS) seeds=$(SEEDS) minutes=$(MINUTES)
	@$(NEIGHBOURS) group seeds=$(SEEDS) minutes=$(MINUTES)

SECONDS_EACH ?= 60
fuzz: ## run the coverage-guided fuzzers (needs clang): SECONDS_EACH=60 AT_A_TIME=2
	@$(MAKE) CC=clang BUILD=build-fuzz SANITIZE=fuzzer CUDA_HOME= fuzzers
	@BUILD=build-fuzz AT_A_TIME=$(AT_A_TIME) scripts/fuzz.sh $(SECONDS_EACH)

mutations: all ## break each rule of the pool in turn, and see that it is caught: CHANGED_SINCE=COMMIT TENTH=SEED
	@$(MAKE) --no-print-directory MUTATIONS=1 library unit
	@BUILD=$(BUILD) tests/mutations/run.sh $(CHANGED_SINCE:%=--changed-since %) $(TENTH:%=--tenth %)

proof: ## everything that is checked, in one table: more than an hour, and as root or with sudo
	@scripts/proof.sh

# Unoptimised, so that a line is a line; the counters are updated by all threads.
coverage: ## how much of core/ and shim/ the tests cover, and why not the rest
	@rm -rf build-coverage
	@$(MAKE) BUILD=build-coverage CFLAGS="-O0 -g --coverage -fprofile-update=atomic" all replays unit
	@BUILD=build-coverage COVERAGE=1 CC="$(CC)" scripts/run_tests.sh || echo "coverage: of tests that failed"
	@scripts/coverage.py build-coverage tests/coverage.md

# Without the tests' programs and the command, which take longer to build than the pool does. The
# settings reader is opened where somebody has settings, or wants the report in a file.
demo: $(PRELOAD) $(if $(CUDAPOOL_CONFIG)$(CUDAPOOL_REPORT),$(CONFIG)) $(SIM) $(DEMOS) ## run a CUDA program without and with the pool (on the GPU if there is one)
	@BUILD=$(BUILD) scripts/demo.sh

OUTPUT ?= $(BUILD)/bench
bench: all $(BENCH_PEERS) ## compare the pool with other allocators, on the GPU if there is one: OUTPUT=DIR
	@BUILD=$(BUILD) tests/bench/bench.py $(OUTPUT)
	@if command -v valgrind >/dev/null; then BUILD=$(BUILD) scripts/instructions_per_pair.sh; \
	    else echo "instructions per pair: there is no valgrind"; fi

layers: library ## who uses whom in core/, shim/ and tools/: fails on what runs up, and on circles
	@scripts/layers.py $(BUILD)

lint: ## check format and sizes, and run clang-tidy, cppcheck and shellcheck
	@scripts/lint.sh

format: ## format all C sources in place
	clang-format -i $(wildcard core/*.h core/*/*.[ch] shim/*.[ch] tools/*.[ch] tools/*/*.[ch] packaging/*.c tests/*.[ch] tests/*/*.[ch] tests/*/*/*.[ch])

# What is told of a setting in several places comes from its declaration. A test says where it does
# not.
settings: $(SETTINGS_SCHEMA) ## write the schema, the defaults, the tables and completions of settings anew
	@packaging/settings_documents.py $<

cross: ## build for aarch64 and run the tests under qemu
	+@scripts/cross.sh

# Where each shell looks for completions of commands; Debian has places of its own.
BASH_COMPLETIONS ?= $(PREFIX)/share/bash-completion/completions
ZSH_COMPLETIONS  ?= $(PREFIX)/share/zsh/site-functions
FISH_COMPLETIONS ?= $(PREFIX)/share/fish/vendor_completions.d
SHARE := $(DESTDIR)$(PREFIX)/share
# Which directories it has made.
MADE := $(PREFIX)/share/cudapool/directories
install: library ## install under PREFIX (/usr/local) and LIBDIR (PREFIX/lib), below DESTDIR
	packaging/directories.sh make "$(DESTDIR)" $(MADE) $(LIBDIR)/pkgconfig $(PREFIX)/bin $(PREFIX)/include \
	    $(PREFIX)/share/cudapool $(PREFIX)/share/man/man1 $(BASH_COMPLETIONS) $(ZSH_COMPLETIONS) $(FISH_COMPLETIONS)
	install -m 755 $(PRELOAD) $(CONFIG) $(DESTDIR)$(LIBDIR)
	install -m 755 $(TOOL) $(DESTDIR)$(PREFIX)/bin
	install -m 644 core/cudapool.h $(DESTDIR)$(PREFIX)/include
	install -m 644 $(wildcard configs/*) $(SHARE)/cudapool
	install -m 644 packaging/cudapool.1 $(SHARE)/man/man1
	install -m 644 packaging/cudapool.bash $(DESTDIR)$(BASH_COMPLETIONS)/cudapool
	install -m 644 packaging/cudapool.zsh $(DESTDIR)$(ZSH_COMPLETIONS)/_cudapool
	install -m 644 packaging/cudapool.fish $(DESTDIR)$(FISH_COMPLETIONS)/cudapool.fish
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' \
	    packaging/cudapool.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/cudapool.pc

uninstall: ## remove what install installed, with the same PREFIX, LIBDIR and DESTDIR
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/,$(notdir $(PRELOAD) $(CONFIG)) pkgconfig/cudapool.pc) \
	    $(DESTDIR)$(PREFIX)/bin/cudapool $(DESTDIR)$(PREFIX)/include/cudapool.h \
	    $(addprefix $(SHARE)/cudapool/,$(notdir $(wildcard configs/*))) \
	    $(SHARE)/man/man1/cudapool.1 $(DESTDIR)$(BASH_COMPLETIONS)/cudapool \
	    $(DESTDIR)$(ZSH_COMPLETIONS)/_cudapool $(DESTDIR)$(FISH_COMPLETIONS)/cudapool.fish
	packaging/directories.sh remove "$(DESTDIR)" $(MADE)

deb: ## build a Debian package in BUILD (build)
	+@BUILD=$(BUILD) VERSION=$(VERSION) CC="$(CC)" packaging/make_deb.sh

clean: ## remove what was built
	rm -rf build build-address build-undefined build-address-undefined build-debug build-glibc-2.31 build-thread build-aarch64 build-clang build-fuzz build-coverage build-mutations build-heuristics \
	    $(BUILD)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r name text; do \
	    printf '  make %-10s %s\n' "$$name" "$$text"; done

# `make test` and `make demo` install what is missing before anything is compiled. Order-only: a
# check that is made every time makes nothing out of date.
ifneq ($(filter test demo,$(MAKECMDGOALS)),)
dependencies:
	@CC="$(CC)" scripts/install_dependencies.sh $(if $(filter test,$(MAKECMDGOALS)),build test,build)
endif

# --- objects ------------------------------------------------------------------------------------

$(BUILD)/obj/core/%.o: $(SOURCE)core/%.c Makefile | dependencies
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(COMPILE) $(POOL_FLAGS) -c $< -o $@

$(BUILD)/obj/tests/mutations/%.o: tests/mutations/%.c Makefile | dependencies
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(COMPILE) $(POOL_FLAGS) -c $< -o $@

$(BUILD)/obj/shim/%.o: $(SOURCE)shim/%.c Makefile | dependencies
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(COMPILE) $(POOL_FLAGS) -c $< -o $@

# dlsym runs before anything else does, a sanitizer's run time included.
$(BUILD)/obj/shim/dlsym.o $(BUILD)/obj/shim/lookup.o: COMPILE += -fno-sanitize=all -fno-stack-protector

# Entries begin without a landing pad (the file says why): the object must not claim to have them.
$(BUILD)/obj/shim/entries.o: COMPILE += $(if $(filter aarch64%,$(shell $(CC) -dumpmachine)), \
    -mbranch-protection=none,-fcf-protection=return)

$(BUILD)/obj/shim/%.o: $(SOURCE)shim/%.S Makefile | dependencies
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(COMPILE) $(POOL_FLAGS) -c $< -o $@

$(BUILD)/obj/tools/%.o: tools/%.c Makefile | dependencies
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(COMPILE) $(TOOL_FLAGS) -c $< -o $@

# What the command knows of the installation. Where LIBDIR is another than last time, what names it
# is compiled again.
TOOL_FLAGS := -fvisibility=hidden $(VERSION_FLAG) -DCUDAPOOL_LIBDIR='"$(LIBDIR)"'
$(BUILD)/libdir: always
	@mkdir -p $(@D)
	@echo '$(LIBDIR)' | cmp -s - $@ || echo '$(LIBDIR)' >$@
.PHONY: always
$(TOOL_OBJECTS): $(BUILD)/libdir
$(BUILD)/obj/core/settings/shipped_json.o: $(wildcard configs/*.json)

$(BUILD)/obj/tests/conformance/%.o: tests/conformance/%.c Makefile | dependencies
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(COMPILE) $(TEST_FLAGS) -c $< -o $@

$(BUILD)/obj/tests/random/%.o: tests/random/%.c tests/kernels.ptx Makefile | dependencies
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(COMPILE) $(TEST_FLAGS) -c $< -o $@

$(BUILD)/obj/tests/bench/worker/%.o: tests/bench/worker/%.c tests/kernels.ptx Makefile | dependencies
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(COMPILE) $(TEST_FLAGS) -c $< -o $@

# <cuda.h> is the toolkit's business: -isystem keeps our warnings out of it.
$(BUILD)/obj/%/abi_check.o: %/abi_check.c Makefile | dependencies
	@mkdir -p $(@D)
	$(say) CHECK $<
	$(Q)$(COMPILE) -isystem $(CUDA_INCLUDE) -c $< -o $@

# --- the preload object, the settings reader, the command ---------------------------------------

# libdl.so.2 by name, and whether or not a symbol of it is used: with glibc before 2.34 dlopen is
# there and not in libc. No -z now: a program that never uses CUDA then binds next to nothing.
EXPORTS := $(wildcard shim/exports.map)
$(PRELOAD): $(filter-out $(JSON_OBJECTS),$(CORE_OBJECTS)) $(SHIM_OBJECTS) $(EXPORTS)
	$(say) LINK $@
	$(Q)$(LINK) -shared -Wl,-soname,$(@F) $(EXPORTS:%=-Wl,--version-script,%) -Wl,-z,defs \
	    -Wl,-z,relro -Wl,-z,lazy $(filter %.o,$^) -o $@ -Wl,--no-as-needed -l:libdl.so.2

# What the settings reader needs of the core is taken from the archive; it exports its two
# functions, whatever else they bring in.
$(CONFIG): $(JSON_OBJECTS) $(BUILD)/core.a
	@printf '{ global: cudapool_config_read; cudapool_report_write; local: *; };\n' >$@.map
	$(say) LINK $@
	$(Q)$(LINK) -shared -Wl,-soname,$(@F) -Wl,--version-script,$@.map -Wl,-z,defs $^ -o $@ -ljansson -pthread -ldl

# Only the command draws on terminals: ncurses has no business in other people's processes.
# libdl as in the preload object.
TOOL_LIBRARIES = -ljansson $(NCURSES) -pthread -Wl,--no-as-needed -l:libdl.so.2
# Its start files' call of libc is ours: see tools/run/first_glibc.c.
$(TOOL): $(TOOL_OBJECTS) $(BUILD)/core.a
	$(say) LINK $@
	$(Q)$(LINK) -Wl,--wrap=__libc_start_main $^ -o $@ $(TOOL_LIBRARIES)

$(SETTINGS_SCHEMA): packaging/settings_schema.c $(BUILD)/core.a Makefile | dependencies
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(COMPILE) $< $(BUILD)/core.a -o $@ $(LDFLAGS) -ljansson -pthread -ldl

$(BUILD)/core.a: $(CORE_OBJECTS)
	$(say) AR $@
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

# --- the driver on the CPU ----------------------------------------------------------------------

# sim_rules(directory, flags): one variant of the simulated driver.
define sim_rules
$(BUILD)/obj/$(1)/%.o: tests/sim/%.c Makefile | dependencies
	@mkdir -p $$(@D)
	$(say) CC "$$< ($(1))"
	$(Q)$$(COMPILE) $$(SIM_FLAGS) $(2) -c $$< -o $$@

$(BUILD)/$(1)/libcuda.so.1: $(SIM_SOURCES:tests/sim/%.c=$(BUILD)/obj/$(1)/%.o)
	@mkdir -p $$(@D)
	$(say) LINK $$@
	$(Q)$$(LINK) -shared -Wl,-soname,libcuda.so.1 -Wl,-z,defs $$^ -o $$@ -pthread -ldl
endef
$(eval $(call sim_rules,sim,))
$(eval $(call sim_rules,sim-old,-DSIM_OLD_DRIVER))
$(eval $(call sim_rules,sim-12.4,-DSIM_DRIVER_12_4))

# Who holds what of devices that processes share (SIMCUDA_SHARED).
$(BUILD)/sim/shared: $(BUILD)/obj/sim/shared_main.o $(BUILD)/obj/sim/shared.o
	@mkdir -p $(@D)
	$(say) LINK $@
	$(Q)$(LINK) $^ -o $@

# --- tests and programs -------------------------------------------------------------------------

$(BUILD)/obj/tests/unit/%.o: tests/unit/%.c Makefile | dependencies
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(COMPILE) $(UNIT_FLAGS) -c $< -o $@

# The core's requests for memory go to the test (failing_memory.h).
$(filter %/test_failing_memory %/test_failing_stream_memory %/test_failing_graph_memory,\
    $(UNIT_TESTS) $(PLAIN_TESTS)): \
    LDFLAGS += $(foreach f,malloc calloc realloc aligned_alloc mmap,-Wl,--wrap=$(f))
# So do its looks through the loaded objects.
$(filter %/test_surroundings %/test_housekeeper,$(UNIT_TESTS) $(PLAIN_TESTS)): \
    LDFLAGS += -Wl,--wrap=dl_iterate_phdr
# The test says where threads run and may run.
$(filter %/test_machine_nodes,$(UNIT_TESTS) $(PLAIN_TESTS)): \
    LDFLAGS += $(foreach f,sched_getaffinity sched_getcpu,-Wl,--wrap=$(f))
# The core's calls of the board go to the test (fake_board.h).
$(filter %/test_neighbours,$(UNIT_TESTS) $(PLAIN_TESTS)): \
    LDFLAGS += $(foreach f,join leave forget device publish publish_in_order publish_listening publish_at_end publish_ending others ended_at \
        ask ask_to_tell demand_look demand_end sleep take give answered group_take read_limits group_give group_held,\
        -Wl,--wrap=board_$(f))

$(BUILD)/tests/unit/%: tests/unit/%.c $(UNIT_OBJECTS) $(BUILD)/core.a Makefile | dependencies
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(COMPILE) $(UNIT_FLAGS) $< $(UNIT_OBJECTS) $(BUILD)/core.a -o $@ $(LDFLAGS) -lcriterion -ljansson -pthread -ldl

$(BUILD)/tests/unit-plain/%: tests/unit/%.c $(UNIT_OBJECTS) $(BUILD)/core.a Makefile | dependencies
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(COMPILE) $(UNIT_FLAGS) -Itests/plain $< $(UNIT_OBJECTS) $(BUILD)/core.a -o $@ $(LDFLAGS) -ljansson -pthread -ldl

# One source is the tool's main, and another the shim's start: the rest comes from the archives. The
# command looks for the library beside itself, and only at its name.
FUZZ_TOOL_OBJECTS := $(filter-out %/cudapool.o %/first_glibc.o,$(TOOL_OBJECTS))
FUZZ_LINKED = $(BUILD)/tools.a $(BUILD)/core.a
$(BUILD)/tools.a: $(FUZZ_TOOL_OBJECTS)
	$(say) AR $@
	@rm -f $@
	$(Q)$(AR) rcs $@ $^

$(BUILD)/obj/tests/fuzz/%.o: tests/fuzz/%.c Makefile | dependencies
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(COMPILE) $(TEST_FLAGS) -c $< -o $@

$(BUILD)/tests/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(call object,$(FUZZ_SHARED)) $(FUZZ_LINKED)
	@mkdir -p $(@D)
	@touch $(@D)/libcudapool_preload.so
	$(say) LINK $@
	$(Q)$(LINK) $^ -o $@ $(TOOL_LIBRARIES)

$(BUILD)/fuzzers/%: $(BUILD)/obj/tests/fuzz/%.o $(FUZZ_LINKED)
	@mkdir -p $(@D)
	@touch $(@D)/libcudapool_preload.so
	$(say) LINK $@
	$(Q)$(LINK) -fsanitize=fuzzer $^ -o $@ $(TOOL_LIBRARIES)

# A program that calls the driver is linked with the simulated one, whose soname is the real one's:
# it runs on either. One that does not call it, does not need it.
$(PROGRAMS): $(BUILD)/%: %.c $(SIM) tests/kernels.ptx Makefile | dependencies
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(COMPILE) $(TEST_FLAGS) $< -o $@ $(LDFLAGS) -Wl,--as-needed $(SIM) -ldl

# Their clock is the simulated driver's, so that the same build takes the same instructions each time.
COUNTED := $(addprefix $(BUILD)/tests/bench/,hit_pair miss visits)
$(COUNTED): LDFLAGS += -rdynamic $(BUILD)/obj/tests/random/virtual_time.o
$(COUNTED): $(BUILD)/obj/tests/random/virtual_time.o

# It is on the board as the pool is.
$(BUILD)/tests/e2e/neighbour: LDFLAGS += $(BUILD)/core.a -pthread
$(BUILD)/tests/e2e/neighbour: $(BUILD)/core.a

# Other people's libraries: they know of no sanitizer, and some run before it is ready.
$(LIBRARIES): $(BUILD)/%.so: %.c $(SIM) tests/kernels.ptx Makefile | dependencies
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(filter-out -fsanitize=%,$(COMPILE)) $(TEST_FLAGS) -fPIC -shared $< $(filter %.o,$^) -o $@ $(LDFLAGS) -Wl,--as-needed $(SIM) -ldl

# They find their way into a program as the pool does.
$(addprefix $(BUILD)/tests/bench/,librecord.so libfloor.so libtimes.so): tests/bench/replaced.h $(BUILD)/obj/shim/dlsym.o $(BUILD)/obj/shim/lookup.o

# Copied, so that the directory can be taken to a machine that has none.
$(BUILD)/tests/bench/libmimalloc.so.2: $(MIMALLOC)
	@mkdir -p $(@D)
	$(say) COPY $@
	$(Q)cp -L $< $@

$(BUILD)/tests/bench/peers/cub.so: tests/bench/peers/cub.cu tests/bench/peers/peer.h tests/bench/peers/build.sh
	$(Q)NVCC=$(NVCC) tests/bench/peers/build.sh $(@D) cub

$(DEMOS): $(BUILD)/demo/%: tests/demo/%.c $(SIM) tests/kernels.ptx Makefile | dependencies
	@mkdir -p $(@D)
	$(say) CC $<
	$(Q)$(COMPILE) $(TEST_FLAGS) $< -o $@ $(LDFLAGS) -Wl,--as-needed $(SIM)

$(CUDA_PROGRAMS): $(BUILD)/%: %.cu $(wildcard tests/gpu/*.cuh) Makefile
	@mkdir -p $(@D)
	$(say) NVCC $<
	$(Q)$(NVCC) -O2 -std=c++17 -cudart static -gencode arch=compute_80,code=[sm_80,compute_80] \
	    -gencode arch=compute_90,code=sm_90 $< -o $@

$(CONFORMANCE): $(CONFORMANCE_OBJECTS) $(SIM)
	@mkdir -p $(@D)
	$(say) LINK $@
	$(Q)$(LINK) $(CONFORMANCE_OBJECTS) -o $@ -Wl,--as-needed $(SIM) -pthread -ldl

$(WORKER): $(WORKER_OBJECTS) $(SIM)
	@mkdir -p $(@D)
	$(say) LINK $@
	$(Q)$(LINK) $(WORKER_OBJECTS) -o $@ -Wl,--as-needed $(SIM) -pthread -ldl

# Its clock takes the place of libc's, for the libraries in its process too.
$(RANDOM): $(RANDOM_OBJECTS) $(SIM)
	@mkdir -p $(@D)
	$(say) LINK $@
	$(Q)$(LINK) $(RANDOM_OBJECTS) -o $@ -rdynamic -Wl,-rpath,'$$ORIGIN/../../sim' $(SIM) -pthread -ldl

# Its processes have the real clock.
$(NEIGHBOURS): $(NEIGHBOURS_OBJECTS) $(SIM)
	@mkdir -p $(@D)
	$(say) LINK $@
	$(Q)$(LINK) $(NEIGHBOURS_OBJECTS) -o $@ -Wl,-rpath,'$$ORIGIN/../../sim' $(SIM) -pthread -ldl

-include $(shell find $(BUILD) -name '*.d' -type f 2>/dev/null)
