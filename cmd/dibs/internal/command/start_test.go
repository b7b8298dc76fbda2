package command

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/pflag"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/proxy"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// TestRunEarlySignal: after a signal while the program starts, nothing is run.
func TestRunEarlySignal(t *testing.T) {
	// Not t.TempDir: a store that is given up while it is opened may be about to make its
	// file when Run has returned.
	dir, err := os.MkdirTemp("", "early")
	testkit.Must(t, err)
	t.Cleanup(func() {
		for end := time.Now().Add(testkit.Limit); os.RemoveAll(dir) != nil; runtime.Gosched() {
			if time.Now().After(end) {
				t.Fatal("its folder cannot be removed")
			}
		}
	})
	for range 20 {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(&InterruptedError{Signal: syscall.SIGTERM})
		var stderr strings.Builder
		code := Run(ctx, []string{"run", "--store", "sqlite:" + filepath.Join(dir, "dibs.db"), "k", "--", "touch", filepath.Join(dir, "ran")}, Env{
			Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &stderr, Getenv: func(string) string { return "" },
		})
		if code != 143 || stderr.Len() == 0 {
			t.Fatalf("%d, %q", code, stderr.String())
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("it was run")
	}
}

// hanging is a store that answers no claim.
type hanging struct{ dibs.Store }

func (hanging) Claim(ctx context.Context, _ []store.Claim, _ []store.Answer) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestStoreTimeoutIsLong: a call of the store may take as long as the longest store-timeout.
func TestStoreTimeoutIsLong(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dibs.yaml")
	testkit.Must(t, os.WriteFile(file, []byte("upstream: http://127.0.0.1:1\nroutes: [{path: /a, store-timeout: 1m}]\n"), 0o600))
	flags := pflag.NewFlagSet("dibs proxy", pflag.ContinueOnError)
	proxy.Bind(flags)
	c, err := (&proxy.Source{File: file, Flags: flags, Getenv: func(string) string { return "" }}).Load()
	testkit.Must(t, err)
	synctest.Test(t, func(t *testing.T) {
		store, err := memstore.New(nil)
		testkit.Must(t, err)
		defer store.Close()
		client, _, err := build(c, hanging{store}, "", slog.New(slog.DiscardHandler))
		testkit.Must(t, err)
		defer client.Close()
		began := time.Now()
		_, err = client.TryAcquire(t.Context(), "k", nil)
		if took := time.Since(began); !errors.Is(err, dibs.ErrStore) || took < time.Minute {
			t.Errorf("%v after %v; want a call of 1m", err, took)
		}
	})
}
