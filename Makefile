# The two commands that matter: `make demo` shows the main job, `make test`
# passes every test. Both work on a machine with Go, git and make.

MODULES := . sqlitestore redisstore pgstore mysqlstore sqllock riverjobs proof asynqjobs cmd/dibs examples proof/bench
# How long each fuzz test runs in `make test`: so many executions, as Go's own clock for
# them now and then calls a run that found nothing a failure (golang.org/issue/75804).
FUZZTIME ?= 1000x
# All is tested with the race detector but SQLite itself: that is C translated to Go,
# and its memory is not Go's, where the detector would see anything. Looking at it all
# the same takes five times as long. (Only this package, which shares no instance of a
# generic function with others: of two the linker keeps either, and atomics that the
# detector does not see are races to it.)
RACE := -race -gcflags=modernc.org/sqlite/lib=-race=false
# A program with the race detector sleeps for a second before it ends, and the tests
# start hundreds.
export GORACE ?= atexit_sleep_ms=0
LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: demo test simulate simulate-beside need tools servers fuzz fuzz-made fuzz-run fuzz-ahead lint bench torture tidy build

demo:
	go run ./cmd/dibs demo $(if $(STORE),--store '$(STORE)')

build:
	CGO_ENABLED=0 go build -trimpath -o bin/dibs ./cmd/dibs

# The tests of one module after the other, and beside them what makes the next ones
# ready, with what the tests leave of the processors: to vet a module compiles what
# its tests use. The simulation is beside the last ones, as its time is simulated.
test: tools
	@.ci/memory $(MAKE) --no-print-directory -j3 $(MODULES:%=test-%) test-rest simulate-beside
	@$(MAKE) --no-print-directory fuzz-run

# Ten thousand simulated histories, without the race detector, with which `make test`
# looks at a few hundred. It prints the first seed; SIMULATE='-seed 17 -histories 1'
# looks at one again. Each makes much that is soon of no use: with less collecting of it
# they take a third less time.
simulate:
	@echo "== simulate"; cd proof && GOGC=400 go test -count=1 -timeout 18m -run TestHistories -v ./sim -args $(SIMULATE)

AHEAD := nice -n 19
# Modules that are tested beside the next one, as their tests mostly wait: for files that
# are locked, and for Asynq, which gives the jobs of a dead process to another one after a
# minute.
BESIDE := sqlitestore asynqjobs
# A module of which two packages start hundreds of processes: its first one is tested
# with nothing beside it, and this one beside the last module above, the simulation and
# then all others.
CROWDED := cmd/dibs
CROWD := ./internal/command
# Packages that take long are tested first in their module, so that others are beside them.
LONG_. := ./internal/servertest
LONG_proof := ./scale ./torture
TEST := go test $(RACE) -vet=off -shuffle=on -timeout 18m
define module
.PHONY: vet-$1 test-$1
vet-$1: $(2:%=vet-%)
	@cd $1 && $$(AHEAD) go vet $$(RACE) ./...
test-$1: vet-$1 $(or $(3:%=test-%),servers)
	@echo "== $1"; cd $1 && $$(TEST) $(if $(filter $1,$(CROWDED)),$(CROWD),$(LONG_$1) ./...)
endef
vetted :=
tested :=
$(foreach m,$(MODULES),$(eval $(call module,$m,$(vetted),$(tested)))$(eval vetted := $m)\
  $(if $(filter $m,$(BESIDE)),,$(eval tested := $m)))
.PHONY: test-first test-rest
test-$(lastword $(BESIDE)) test-$(CROWDED): test-first
test-first: vet-$(CROWDED) test-proof
	@echo "== $(CROWDED), its first package"; cd $(CROWDED) && $(TEST) .
test-rest: test-$(lastword $(BESIDE))
	@echo "== $(CROWDED), the rest"; cd $(CROWDED) && $(TEST) -p 1 $$(go list ./internal/... | grep -v "/$(notdir $(CROWD))$$")
fuzz-ahead: vet-$(vetted)
	@$(AHEAD) $(MAKE) --no-print-directory build fuzz-made
	@cd proof && $(AHEAD) go test -c -o /dev/null ./sim
simulate-beside: test-first fuzz-ahead
	@$(AHEAD) $(MAKE) --no-print-directory simulate

# What the tests use beside Go: the race detector a C compiler, the guides ps
# and curl, the stores their servers, for which see internal/servertest. The
# foreign program behind the proxy sees to itself, and so does Valkey.
need: tools servers

tools:
	@want=""; \
	command -v gcc >/dev/null || want="$$want gcc libc6-dev"; \
	command -v ps >/dev/null || want="$$want procps"; \
	command -v curl >/dev/null || want="$$want curl"; \
	test -n "$$want" || exit 0; \
	if test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null; then \
	  echo "make test needs more than Go: apt-get install$$want" >&2; exit 1; fi; \
	echo "installing$$want"; \
	apt-get install -y --no-install-recommends $$want >/dev/null 2>&1 || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends $$want; }

servers: tools
	@go run ./internal/servertest/need

# Every fuzz test, on its committed corpus and then for a few seconds of its own.
fuzz: fuzz-made
	@$(MAKE) --no-print-directory fuzz-run

fuzz-made:
	@.ci/fuzz make bin/fuzz $(MODULES)

fuzz-run:
	@.ci/fuzz run $(FUZZTIME) bin/fuzz

lint:
	@set -e; for m in $(MODULES); do echo "== $$m"; (cd $$m && go run $(LINT) run ./... && test -z "$$(go fix -diff ./... 2>&1 | tee /dev/stderr)"); done

bench: build
	cd proof/bench && go run .

# Every store under every fault that applies, for so long each, and the table of what
# came of it in docs/reliability.md. With STORE only that one, and no table.
DURATION ?= 5m
torture: servers
	cd proof && go run ./nightly -duration $(DURATION) $(if $(STORE),-only $(STORE),-page ../docs/reliability.md)

tidy:
	@set -e; for m in $(MODULES); do (cd $$m && go mod tidy); done
	go work sync
