//go:build unix

package command

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/runrecord"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// cut is a store whose answers are lost until a moment.
type cut struct {
	*memstore.Store
	until time.Time
}

var errCut = errors.New("the line is cut")

func (s *cut) Renew(ctx context.Context, renewals []store.Renewal, errs []error) error {
	err := s.Store.Renew(ctx, renewals, errs)
	if time.Now().Before(s.until) {
		return errCut
	}
	return err
}

func (s *cut) Settle(ctx context.Context, settlements []store.Settlement, errs []error) error {
	err := s.Store.Settle(ctx, settlements, errs)
	if time.Now().Before(s.until) {
		return errCut
	}
	return err
}

// TestCompleteIsRepeated: a run whose record was written and not answered is completed again, and
// is not a loss of the key, even if no answer comes while the lease lasts.
func TestCompleteIsRepeated(t *testing.T) {
	for _, test := range []struct {
		away time.Duration
		want error
	}{
		{20 * time.Second, nil},
		{time.Minute, dibs.ErrStore},
	} {
		t.Run(test.away.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				under, err := memstore.New(nil)
				testkit.Must(t, err)
				defer under.Close()
				s := &cut{Store: under}
				client, err := dibs.New(s, nil)
				testkit.Must(t, err)
				defer client.Close()
				lease, err := client.Acquire(t.Context(), "k", nil)
				testkit.Must(t, err)
				s.until = time.Now().Add(test.away)
				h := &held{key: "k", command: []string{"true"}, lease: dibs.DefaultTTL}
				err = (&program{}).complete(lease, h, runrecord.Run{}, time.Hour)
				if !errors.Is(err, test.want) || errors.Is(err, dibs.ErrLost) {
					t.Errorf("got %v, not %v", err, test.want)
				}
				if _, ok, err := client.Record(t.Context(), "k"); !ok || err != nil {
					t.Errorf("the record is there: %v, %v", ok, err)
				}
			})
		})
	}
}

// TestRunNamesTheKey: errors of dibs run have the key that its caller named, and not its digest.
func TestRunNamesTheKey(t *testing.T) {
	h, lost := &held{key: "nightly\x1breport"}, errors.New("lost")
	key := dibs.Key{Namespace: "shop", Name: h.key}
	err := h.named("shop", fmt.Errorf("the lease of key %s: %w", key.Digest(), lost))
	if want := `the lease of key "nightly\x1breport": lost`; err.Error() != want || !errors.Is(err, lost) {
		t.Errorf("%q; want %q", err, want)
	}
	if err := h.named("shop", nil); err != nil {
		t.Error(err)
	}
}
