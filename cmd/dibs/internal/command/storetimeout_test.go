package command

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
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
