//go:build nightly

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
)

// TestDemo: without dibs orders are charged twice, and with dibs once.
func TestDemo(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) { checkDemo(t) })
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := servertest.Redis(t, &servertest.RedisOptions{Password: secret})
		checkDemo(t, "--store", server.URL())
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		checkDemo(t, "--store", ownSchema(t))
	})
	t.Run("mariadb", func(t *testing.T) {
		t.Parallel()
		checkDemo(t, "--store", ownPrefix(t, mariadb().URL()))
	})
}

func checkDemo(t *testing.T, flags ...string) {
	code, stdout, stderr := run(t, append([]string{"demo", "--exit"}, flags...)...)
	if code != 0 {
		t.Fatalf("it exited with %d: %s%s", code, stdout, stderr)
	}
	var bare, with int
	for _, want := range []string{"orders charged more than once", "orders lost"} {
		if !scanRow(stdout, want, &bare, &with) || with != 0 {
			t.Errorf("%s: %d with dibs:\n%s", want, with, stdout)
		}
	}
	if scanRow(stdout, "orders charged more than once", &bare, &with); bare == 0 {
		t.Errorf("the bare service charged no order twice:\n%s", stdout)
	}
	for _, want := range []string{"answers replayed", "conflicts (409), retried", "cut off by the kill, then settled"} {
		if !scanRow(stdout, want, &bare, &with) || with == 0 || bare != 0 {
			t.Errorf("%s: %d bare, %d with dibs:\n%s", want, bare, with, stdout)
		}
	}
}

// scanRow reads a row of the demo's table.
func scanRow(table, name string, bare, with *int) bool {
	_, rest, ok := strings.Cut(table, name)
	if !ok {
		return false
	}
	n, err := fmt.Sscan(rest, bare, with)
	return n == 2 && err == nil
}
