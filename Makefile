# `make demo` shows the main job. `make test` passes the tests. docs/design/testing.md says what runs where.

# The modules, from go.work.
MODULES := $(shell go list -m -f '{{.Dir}}')
# The race detector looks at everything but the translated C code of SQLite and Go's packages that
# read Go, which it makes five times slower, and where it could find nothing of ours. -l halves the
# time to compile Redis's clients. A program knows the last -gcflags of its build only, and the tests
# of examples build others with it, so that SQLite's is the last.
RACE := -race -gcflags=go/...=-race=false -gcflags=github.com/redis/...=-l -gcflags=modernc.org/sqlite/lib=-race=false
# A program that the race detector looks at ends at once, not after a second.
export GORACE ?= atexit_sleep_ms=0

# The most bytes that bin/dibs may have.
SIZE := 30000000

.PHONY: demo build test test-raced test-plain race nightly nightly-tests mutants fuzz torture trial bench pictures screenshots release lint tidy need

demo:
	go run ./cmd/dibs demo $(if $(STORE),--store '$(STORE)')

build:
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/ ./cmd/dibs ./cmd/dibs-prove
	@size=$$(wc -c <bin/dibs); echo "bin/dibs has $$size bytes, of at most $(SIZE)"; test $$size -le $(SIZE)

# each runs a command in every module, even after a failure, and names the modules where it failed.
each = failed=; for m in $(MODULES); do began=$$(date +%s); echo "== $${m\#$(CURDIR)/}"; (cd $$m && $(1)) || failed="$$failed $${m\#$(CURDIR)/}"; \
  echo "== $${m\#$(CURDIR)/} took $$(($$(date +%s) - began)) s"; done; \
  test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

# The packages of the gate. Those with libraries that take long to compile are left to the nightly
# tests and to lint. -e lists a package that is broken, too, so that it fails.
PACKAGES = $(filter-out %/examples/frameworks %/examples/redelivery %/proof/bench,$(shell go list -e $(MODULES:%=%/...)))
# Those that carry concurrency. Here the race detector looks at these only; `make race` looks at all.
ROOT := github.com/dibs-go/dibs
RACED := $(ROOT) $(addprefix $(ROOT)/,store/engine store/remote stores/memstore stores/httpstore idempotency idempotency/retry \
  jobs page internal/batch internal/memory internal/slow internal/survey)

# The tests of these mostly wait, for servers, so that they begin first.
WAITING := $(addprefix $(ROOT)/,stores/pgstore stores/mysqlstore cmd/dibs/internal/command cmd/dibs)

test:
	@unformatted=$$(gofmt -l .); test -z "$$unformatted" || { echo "gofmt differs: $$unformatted" >&2; exit 1; }
	@$(MAKE) --no-print-directory -k -j3 test-raced test-plain

test-raced: need
	@go test -race -vet=off -shuffle=on -timeout 30m $(RACED)

# With the flags of make build, so that what the program, the tests and the commands of pages share is
# compiled once. The programs are built first, so that no two tests compile them at the same time.
test-plain: export CGO_ENABLED = 0
test-plain: export GOFLAGS := $(shell go env GOFLAGS) -trimpath
test-plain: need build
	@go vet $(RACED) & vet=$$!; \
	  go test -p 3 -ldflags '-s -w' -vet=all -shuffle=on -timeout 30m $(WAITING) $(filter-out $(RACED) $(WAITING),$(PACKAGES)) && wait $$vet

# The tests of the gate, with the race detector in all of them.
race: need build
	@go test $(RACE) -vet=off -shuffle=on -timeout 60m $(PACKAGES)

# Each part is a command of its own, for what one has touched. `make mutants` is not among them: its report is to be read.
NIGHTLY := nightly-tests fuzz torture
nightly: need
	@failed=; for part in $(NIGHTLY); do began=$$(date +%s); $(MAKE) --no-print-directory $$part || failed="$$failed $$part"; \
	  echo "== $$part took $$(($$(date +%s) - began)) s"; done; test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

# IN has the folders of some modules.
nightly-tests: MODULES := $(if $(IN),$(IN:%=$(CURDIR)/%),$(MODULES))
nightly-tests:
	@$(call each,go vet -tags nightly ./... && go test $(RACE) -tags nightly -vet=off -shuffle=on -timeout 60m ./...)

# Changes each condition and each sum of a package, one at a time, and prints those that the package's
# own tests do not notice. What no test could notice is among them: docs/design/testing.md.
PKG ?= store/engine . jobs idempotency stores/httpstore cmd/dibs/internal/serve
mutants:
	@failed=; for p in $(PKG); do echo "== mutants of $$p"; m=$$(cd $$p && dirname $$(go env GOMOD)); d=$$(cd $$p && pwd); \
	  (cd $$m && go run github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0 unleash --workers 1 --timeout-coefficient 30 -S lt $$(test $$p != . || echo '-E /') .$${d#$$m}) || failed="$$failed $$p"; done; \
	  test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

# Each fuzz test for a while. A finding is written to testdata, where `make test` repeats it.
FUZZTIME ?= 30s
fuzz:
	@$(call each,for p in $$(go list ./...); do for f in $$(go test -list '^Fuzz' $$p | grep '^Fuzz'); do \
	  go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) $$p || exit 1; done; done)

# Every store under every fault, for this long each; the table goes to docs/reference/reliability.md.
DURATION ?= 1m
torture: need
	cd proof && go test $(RACE) -tags nightly -vet=off -count=1 -timeout 0 -v -run '^TestStores$$' ./torture \
	  -args -duration $(DURATION) $(if $(STORE),-store $(STORE),-page ../../docs/reference/reliability.md)

# The torture over other locks, about half an hour for all; the tables go to docs/reference/trial.md. ONLY has
# the names of some, with commas.
trial: need
	cd proof/trial && go run . -page ../../docs/reference/trial.md $(if $(ONLY),-only $(ONLY))

bench: build
	cd proof/bench && go run . -page ../../docs/reference/benchmarks.md

# Draws the charts of the benchmarks again, from the page's tables.
pictures:
	go test -count=1 ./internal/prove/draw -args -write

# Makes the screenshots of the pages again, from the tests that live through these states.
screenshots: need
	cd proof && go test -count=1 -tags nightly -run '^Test(StuckWorker|CustomersConflict|UnknownOutcome|Demo)$$/by_clicks' ./browser -args -pictures ../../docs/pictures

# Every module at a version, tried as its users will get it, and the programs for every
# system, in bin/release. It pushes nothing.
release: need
	@test -z "$$(git status --porcelain)" || { echo "commit first: only what is committed is released" >&2; exit 1; }
	cd proof && go test -tags nightly -vet=off -count=1 -timeout 0 -v -run '^TestRelease$$' ./release \
	  -args -version '$(VERSION)' -to $(CURDIR)/bin/release

# With what is nightly. The program and its tests of the gate must compile on the other systems, too.
lint:
	@$(call each,go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0 run --build-tags nightly ./... && \
	  test -z "$$(go fix -tags nightly -diff ./... | tee /dev/stderr)")
	@cd cmd/dibs && for os in darwin windows; do CGO_ENABLED=0 GOOS=$$os go vet -trimpath ./... || exit 1; done

tidy:
	@$(call each,go mod tidy) && go work sync

# Installs what the tests use beside Go, or says what is missing.
need:
	@CGO_ENABLED=0 go run -trimpath ./internal/prove/servertest/need
