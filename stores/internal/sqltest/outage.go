package sqltest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
)

// none is PruneEvery of stores that do not prune in the background.
const none = -1

// ending returns a function that ends at most that many of the connections that the query
// finds, and waits until they have ended.
func (k *Kind) ending(t testing.TB, connections string) func(most int) {
	t.Helper()
	db := k.DB(t, k.Server.URL())
	find := func() (numbers []string) {
		rows, err := db.QueryContext(t.Context(), connections)
		testkit.Must(t, err)
		defer rows.Close()
		for rows.Next() {
			var n string
			err = errors.Join(err, rows.Scan(&n))
			numbers = append(numbers, n)
		}
		testkit.Must(t, errors.Join(err, rows.Err()))
		return numbers
	}
	return func(most int) {
		t.Helper()
		testkit.Eventually(t, "they are gone", func() bool {
			found := find()
			for i, n := range found {
				if i < most {
					_, _ = db.ExecContext(t.Context(), fmt.Sprintf(k.End, n)) // it may have ended by itself
				}
			}
			return most < all || len(found) == 0 // a pool may make new ones
		})
	}
}

const all = math.MaxInt

// A connection that ended while it was idle does not make the next call fail.
func (k *Kind) lostConnections(t *testing.T) {
	url, connections := k.Apart(t, k.Server)
	c := Client(t, k.Open(t, url, testkit.Own(), none), nil)
	end := k.ending(t, connections)
	for i := range 5 {
		lease, err := c.TryAcquire(t.Context(), "k", nil)
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		end(all)
		if err := lease.Save(t.Context(), []byte("half")); err != nil {
			t.Fatalf("round %d: save: %v", i, err)
		}
		end(all)
		if err := lease.Release(); err != nil {
			t.Fatalf("round %d: release: %v", i, err)
		}
		end(all)
	}
}

// If connections end while many clients work, at most one client holds a key, and nothing is left
// behind.
func (k *Kind) endedUnderLoad(t *testing.T) {
	url, connections := k.Apart(t, k.Server)
	name := testkit.Own()
	crowd := NewCrowd(t, k.Open(t, url, name, 0), k.Open(t, url, name, 0))
	end := k.ending(t, connections+" ORDER BY "+k.Random)
	for range 60 {
		end(2)
		crowd.GoOn(3)
	}
	crowd.End()
}

// A server that crashes and restarts while many clients work loses no lease and no record.
func (k *Kind) serverRestarts(t *testing.T) {
	server, name := k.Own(t, 100), testkit.Own()
	crowd := NewCrowd(t, k.Open(t, server.URL(), name, 0), k.Open(t, server.URL(), name, 0))
	for range 2 {
		server.Kill()
		server.Restart()
		crowd.GoOn(50)
	}
	crowd.End()
}

// A process that is cut off from the server, by a network that refuses or that is silent, keeps
// others waiting until its leases expire. Its calls fail meanwhile. Then it continues when the
// network is back.
func (k *Kind) cutOff(t *testing.T, lasts time.Duration) {
	for name, trouble := range map[string]func(*wire.Wire){"cut": (*wire.Wire).Cut, "hang": func(w *wire.Wire) { w.Set(wire.Trouble{Hold: true}, nil) }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wire, name := servertest.NewWire(t, k.Server.Addr()), testkit.Own()
			far := k.Server.URLAt(wire.Addr())
			crowd := NewCrowd(t, k.Open(t, far, name, 0), k.Open(t, k.Server.URL(), name, 0))
			crowd.GoOn(50)
			s := k.Open(t, far, name, 0)
			// A claim of lone that the network delivers after its own undo holds the key until its
			// lease expires: see docs/reference/reliability.md.
			lone, patient := Client(t, s, &dibs.Options{Timeout: time.Second, TTL: 2 * time.Second}), Client(t, s, nil)
			trouble(wire)
			for back := time.Now().Add(lasts); ; {
				if _, err := lone.Acquire(t.Context(), "lone", nil); !errors.Is(err, dibs.ErrStore) {
					t.Errorf("%v, want ErrStore", err)
				}
				crowd.GoOn(1) // the clients that are not cut off
				if !time.Now().Before(back) {
					break
				}
			}
			wire.Mend()
			testkit.Eventually(t, "it is back", func() bool {
				lease, err := patient.Acquire(t.Context(), "lone", nil)
				return err == nil && lease.Release() == nil
			})
			crowd.GoOn(50)
			crowd.End()
		})
	}
}

// A store whose connections were cut closes without an error.
func (k *Kind) closeAfterCut(t *testing.T) {
	wire := servertest.NewWire(t, k.Server.Addr())
	s := k.Open(t, k.Server.URLAt(wire.Addr()), testkit.Own(), none)
	Hold(t, s, "k")
	wire.Cut()
	testkit.Check(t, s.Close())
}

// If an application uses up all connections of the server, leases are still renewed and released.
func (k *Kind) exhausted(t *testing.T) {
	server := k.Own(t, 30)
	url, _ := k.Apart(t, server)
	client := Client(t, k.Open(t, url, testkit.Own(), 0), nil)
	lease, err := client.Acquire(t.Context(), "k", nil)
	testkit.Must(t, err)
	other, err := client.Acquire(t.Context(), "l", nil)
	testkit.Must(t, err)
	testkit.Must(t, other.Release())
	for db := k.DB(t, url); ; {
		conn, err := db.Conn(t.Context())
		if err != nil {
			if !errors.Is(k.Explain(err), k.Crowded) {
				t.Errorf("%v, want %v", k.Explain(err), k.Crowded)
			}
			break
		}
		defer conn.Close()
	}
	if err := lease.Save(t.Context(), []byte("half")); err != nil { // which renews it
		t.Error(err)
	}
	testkit.Check(t, lease.Release())
}

// If the server's clock is set back while many clients work, at most one client holds a key,
// fences rise, and no record is lost.
func (k *Kind) clockSetBack(t *testing.T) {
	open, set := k.Skewed(t, testkit.Own())
	crowd := NewCrowd(t, open(), open())
	crowd.GoOn(50)
	client := Client(t, crowd.s, nil)
	answer := func() string {
		t.Helper()
		got, err := dibs.Once(t.Context(), client, "kept", nil, func(context.Context) (string, error) { return time.Now().String(), nil })
		testkit.Must(t, err)
		return got
	}
	kept, fence := answer(), uint64(0)
	held, err := client.Acquire(t.Context(), "held", nil)
	testkit.Must(t, err)
	for _, back := range []time.Duration{10 * time.Minute, time.Hour, 30 * 24 * time.Hour} {
		set(back)
		lease, err := client.Acquire(t.Context(), "again and again", nil)
		testkit.Must(t, err)
		if lease.Fence() <= fence {
			t.Errorf("%v: the fence is %d after %d", back, lease.Fence(), fence)
		}
		fence = lease.Fence()
		if err := lease.Release(); err != nil {
			t.Errorf("%v: %v", back, err)
		}
		if got := answer(); got != kept {
			t.Errorf("%v: %q, want %q", back, got, kept)
		}
		if _, err := client.TryAcquire(t.Context(), "held", nil); !errors.Is(err, dibs.ErrHeld) {
			t.Errorf("%v: %v, want ErrHeld", back, err)
		}
		before := held.Until()
		if err := held.Save(t.Context(), []byte("half")); err != nil || !held.Until().After(before) {
			t.Errorf("%v: the lease is not renewed: %v", back, err)
		}
		crowd.GoOn(50)
	}
	testkit.Check(t, held.Release())
	lease, err := client.TryAcquire(t.Context(), "held", nil)
	if err != nil || lease.Fence() <= held.Fence() || lease.Attempt() != 1 {
		t.Errorf("%v, %v", lease, err)
	} else if err := lease.Release(); err != nil {
		t.Error(err)
	}
	crowd.End()
}
