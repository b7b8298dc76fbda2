package main

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/prove/wire"
	"github.com/dibs-go/dibs/proof/check"
	"github.com/dibs-go/dibs/proof/history"
	"github.com/dibs-go/dibs/proof/torture"
)

func TestMain(m *testing.M) {
	torture.Child(openLock)
	testkit.Main(m, nil)
}

// TestLateUnlock: a holder that was cut off until its lease had run out unlocks the key of the next
// holder. After that, SET NX without a token has two holders, which the check finds. The others
// have one.
func TestLateUnlock(t *testing.T) {
	server := servertest.Redis(t, nil)
	for _, test := range []struct {
		name   string
		open   opener
		breaks bool
	}{
		{"set-nx", openSetNX(false), true},
		{"set-nx-token", openSetNX(true), false},
		{"dibs", openDibs, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			server.Must("FLUSHALL")
			line := servertest.NewWire(t, server.Addr())
			late := opened(t, test.open, server.URLAt(line.Addr()), lease)
			others := opened(t, test.open, server.URL(), time.Minute)
			var memory history.Memory
			w := memory.Writer(1, 0)
			w.Now = history.Now

			first, err := late.Lock(t.Context(), "k")
			testkit.Must(t, err)
			line.Set(wire.Trouble{Refuse: true}, nil)
			line.Reset()
			second, err := others.Lock(t.Context(), "k") // when the first lease has run out
			testkit.Must(t, err)
			enter(t, w, "second")
			line.Mend()
			_ = first.Unlock() // some say that it was too late

			wait := testkit.Limit
			if !test.breaks {
				wait = 200 * time.Millisecond // the more, the more it would find; never wrong
			}
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			third, err := others.Lock(ctx, "k")
			if (err == nil) != test.breaks {
				t.Fatalf("the third caller got %v, while the second holds the lock", err)
			}
			if err == nil {
				enter(t, w, "third")
			}
			leave(t, w, "second")
			testkit.Must(t, second.Unlock())
			if third == nil {
				third, err = others.Lock(t.Context(), "k")
				testkit.Must(t, err)
				enter(t, w, "third")
			}
			leave(t, w, "third")
			_ = third.Unlock()
			if l := check.Sections(memory.Events()); (len(l.Overlaps) == 1) != test.breaks || l.Sections != 2 {
				t.Errorf("found %+v", l)
			}
		})
	}
}

func opened(t *testing.T, open opener, url string, ttl time.Duration) torture.Locker {
	t.Helper()
	l, end, err := open(t.Context(), url, ttl)
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, end()) })
	return l
}

func enter(t *testing.T, w *history.Writer, token string) {
	t.Helper()
	testkit.Must(t, w.Happened(history.Event{Kind: history.Enter, Key: "k", Token: token}))
}

func leave(t *testing.T, w *history.Writer, token string) {
	t.Helper()
	testkit.Must(t, w.Happened(history.Event{Kind: history.Leave, Key: "k", Token: token}))
}

// TestTry: workers use a lock, and nothing breaks without a fault.
func TestTry(t *testing.T) {
	c, err := find("dibs-sqlite")
	testkit.Must(t, err)
	r, err := try(t.Context(), c, groups[0], time.Second, 1, "", slog.New(slog.DiscardHandler))
	testkit.Must(t, err)
	if r.Sections == 0 || r.Overlaps > 0 || len(r.Stuck) > 0 || r.found(c) != "kept" {
		t.Errorf("found %+v", r)
	}
}

// TestChoose: a name that is not a contender's is refused with those that are.
func TestChoose(t *testing.T) {
	if _, err := choose("nothing"); err == nil {
		t.Error("a contender of no name was found")
	}
	if _, err := chooseGroups("none,nothing"); err == nil {
		t.Error("a group of no name was found")
	}
	all, err := choose("")
	testkit.Must(t, err)
	some, err := choose("redsync,pglock")
	testkit.Must(t, err)
	if len(all) != len(contenders()) || len(some) != 2 || some[1].name != "pglock" {
		t.Errorf("chose %d and %d", len(all), len(some))
	}
}
