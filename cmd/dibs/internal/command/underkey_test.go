//go:build unix

package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/runrecord"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

// TestKilledInTime: whatever is left of the lease, no process of the command outlives it. The lease
// expires a margin after the moment until which it is trusted; the margin is more than the grace.
func TestKilledInTime(t *testing.T) {
	now := time.Now()
	for _, lease := range []time.Duration{time.Second, 10 * time.Second, time.Hour} {
		h := held{lease: lease}
		for _, left := range []time.Duration{-time.Hour, -lease, -h.grace(), -1, 0, 1, h.grace() / 2, h.grace(), h.grace() + 1, lease} {
			until := now.Add(left)
			wantLost, wantLeft := now.Add(min(left, 0)+h.grace()), now.Add(min(left, h.grace()))
			if got := h.killLost(now, until); !got.Equal(wantLost) {
				t.Errorf("lease %v, %v left: a lost command is killed after %v; want %v", lease, left, got.Sub(now), wantLost.Sub(now))
			}
			if got := h.killLeft(now, until); !got.Equal(wantLeft) {
				t.Errorf("lease %v, %v left: what was left behind is killed after %v; want %v", lease, left, got.Sub(now), wantLeft.Sub(now))
			}
		}
	}
}

// unheard is a store that carries out the first settlement, and loses its answer. Afterwards it
// does what then says.
type unheard struct {
	*memstore.Store
	then  error
	calls int
}

var errUnheard = errors.New("the answer was lost")

func (s *unheard) Settle(ctx context.Context, all []store.Settlement, errs []error) error {
	if s.calls++; s.calls == 1 {
		_ = s.Store.Settle(ctx, all, errs)
		return errUnheard
	}
	for i := range errs {
		errs[i] = s.then
	}
	return nil
}

// TestRecordThatMayBeThere: if the store did not answer about the record, and then says that the
// lease is lost, the record may be there. So the key is not reported as lost while the command ran.
func TestRecordThatMayBeThere(t *testing.T) {
	m, err := memstore.New(nil)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, m.Close()) })
	for name, test := range map[string]struct {
		then error
		says string
	}{
		"the record was forgotten": {store.ErrLost, `the command exited with 0, but the key "the record was forgotten" could not be settled: `},
		"it is there":              {nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := &unheard{Store: m, then: test.then}
			client, err := dibs.New(s, &dibs.Options{TTL: time.Hour})
			testkit.Must(t, err)
			lease, err := client.TryAcquire(t.Context(), name, nil)
			testkit.Must(t, err)
			h := &held{key: name, command: []string{"true"}, lease: time.Hour, oncePer: time.Hour, from: fromStart}
			p := &program{env: Env{Stderr: &testkit.Output{}}}
			err = p.settleRun(client, lease, h, time.Now(), 0)
			if test.says == "" {
				testkit.Check(t, err)
			} else if e, ok := errors.AsType[*exitError](err); !ok || e.code != codeLost || !strings.HasPrefix(e.text, test.says) {
				t.Errorf("it ends with %v; want %s", err, test.says)
			}
			if s.calls < 2 {
				t.Errorf("it asked %d times", s.calls)
			}
		})
	}
}

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
