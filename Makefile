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
LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: demo test simulate simulate-beside need tools servers fuzz fuzz-made fuzz-run fuzz-ahead lint bench torture tidy build

demo:
	go run ./cmd/dibs demo $(if $(STORE),--store '$(STORE)')

build:
	CGO_ENABLED=0 go build -trimpath -o bin/dibs ./cmd/dibs

# The tests of one module after the other, and beside them what makes the next ones
# ready, with what the tests leave of the processors: to vet a module compiles what
# its tests use. The simulation is beside the last of them, as its time is simulated.
test: tools
	@.ci/memory $(MAKE) --no-print-directory -j3 $(MODULES:%=test-%) simulate-beside
	@$(MAKE) --no-print-directory fuzz-run

# Ten thousand simulated histories, without the race detector, with which `make test`
# looks at a few hundred. It prints the first seed; SIMULATE='-seed 17 -histories 1'
# looks at one again.
simulate:
	@echo "== simulate"; cd proof && go test -count=1 -run TestHistories -v ./sim -args $(SIMULATE)

AHEAD := nice -n 19
# A module that is tested beside the next one: Asynq gives the jobs of a dead process to
# another one after a minute, in which nothing happens.
BESIDE := asynqjobs
# A module whose packages are tested one after the other, as they start hundreds of
# processes; its first one with nothing beside it, as that leaves no processor idle.
CROWDED := cmd/dibs
TEST := go test $(RACE) -vet=off -shuffle=on -timeout 18m
define module
.PHONY: vet-$1 test-$1
vet-$1: $(2:%=vet-%)
	@cd $1 && $$(AHEAD) go vet $$(RACE) ./...
test-$1: vet-$1 $(or $(3:%=test-%),servers)
	@echo "== $1"; cd $1 && $$(TEST) $(if $(filter $1,$(CROWDED)),-p 1 ./internal/...,./...)
endef
vetted :=
tested :=
$(foreach m,$(MODULES),$(eval $(call module,$m,$(vetted),$(tested)))$(eval vetted := $m)\
  $(if $(filter $m,$(BESIDE)),,$(eval tested := $m)))
.PHONY: test-first
test-$(BESIDE) test-$(CROWDED): test-first
test-first: vet-$(CROWDED) test-proof
	@echo "== $(CROWDED), its first package"; cd $(CROWDED) && $(TEST) .
fuzz-ahead: vet-$(vetted)
	@$(AHEAD) $(MAKE) --no-print-directory build fuzz-made
simulate-beside: test-$(CROWDED) fuzz-ahead
	@nice -n 10 $(MAKE) --no-print-directory simulate

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
