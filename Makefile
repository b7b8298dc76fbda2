# The two commands that matter: `make demo` shows the main job, `make test`
# passes every test. Both work on a machine with Go, git and make.

MODULES := . sqlitestore cmd/dibs proof
# Seconds that each fuzz test runs in `make test`.
FUZZTIME ?= 3s
LINT := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

.PHONY: demo test fuzz lint bench tidy build

demo:
	go run ./cmd/dibs demo $(if $(STORE),--store $(STORE))

build:
	CGO_ENABLED=0 go build -trimpath -o bin/dibs ./cmd/dibs

test: build
	@set -e; for m in $(MODULES); do echo "== $$m"; (cd $$m && go vet ./... && go test -race -shuffle=on ./...); done
	@$(MAKE) --no-print-directory fuzz

# Every fuzz test, on its committed corpus and then for a few seconds of its own.
fuzz:
	@set -e; for m in $(MODULES); do (cd $$m; \
	  grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -r -n1 dirname | sort -u | while read -r d; do \
	    for f in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' $$d/*_test.go | cut -c6-); do \
	      echo "== $$m $$d $$f"; go test -run='^$$' -fuzz="^$$f\$$" -fuzztime=$(FUZZTIME) $$d || exit 1; \
	    done; done); done

lint:
	@set -e; for m in $(MODULES); do echo "== $$m"; (cd $$m && go run $(LINT) run ./... && test -z "$$(go fix -diff ./... 2>&1 | tee /dev/stderr)"); done

bench:
	cd proof && go run ./bench

tidy:
	@set -e; for m in $(MODULES); do (cd $$m && go mod tidy); done
	go work sync
