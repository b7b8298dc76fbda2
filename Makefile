# The two commands that matter: `make demo` shows the main job, `make test`
# passes every test. Both work on a machine with Go, git and make.

MODULES := . sqlitestore redisstore pgstore mysqlstore sqllock cmd/dibs examples proof
# Seconds that each fuzz test runs in `make test`.
FUZZTIME ?= 3s
LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: demo test need fuzz lint bench tidy build

demo:
	go run ./cmd/dibs demo $(if $(STORE),--store '$(STORE)')

build:
	CGO_ENABLED=0 go build -trimpath -o bin/dibs ./cmd/dibs

test: need build
	@set -e; for m in $(MODULES); do echo "== $$m"; (cd $$m && go vet ./... && go test -race -shuffle=on -timeout 18m ./...); done
	@$(MAKE) --no-print-directory fuzz

# What the tests use beside Go: the race detector a C compiler, the guides ps
# and curl, the stores their servers, for which see internal/servertest. The
# foreign program behind the proxy sees to itself, and so does Valkey.
need:
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
	@go run ./internal/servertest/need

# Every fuzz test, on its committed corpus and then for a few seconds of its own.
fuzz:
	@set -e; for m in $(MODULES); do cd $$m; \
	  for d in $$(go list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./...); do \
	    for f in $$(cat $$d/*_test.go | sed -nE 's/^func (Fuzz[A-Za-z0-9_]+).*/\1/p'); do \
	      echo "== $$f"; go test -run='^$$' -fuzz="^$$f\$$" -fuzztime=$(FUZZTIME) -fuzzminimizetime=200x $$d; \
	    done; done; cd - >/dev/null; done

lint:
	@set -e; for m in $(MODULES); do echo "== $$m"; (cd $$m && go run $(LINT) run ./... && test -z "$$(go fix -diff ./... 2>&1 | tee /dev/stderr)"); done

bench: build
	cd proof && go run ./bench

tidy:
	@set -e; for m in $(MODULES); do (cd $$m && go mod tidy); done
	go work sync
