//go:build unix

package command

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
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
