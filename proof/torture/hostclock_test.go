package torture

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/history"
)

// TestClockThatIsSet: a step of the host's clock is seen, and is not drift; looks between
// which the machine paused out of nothing.
func TestClockThatIsSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		now := func() time.Duration { return time.Since(begin) }
		look := func() (time.Duration, bool) {
			ahead := now() / 2000 // slewed
			switch at := now(); {
			case at >= 500*time.Millisecond && at < 600*time.Millisecond:
				return time.Hour, false
			case at >= 1500*time.Millisecond:
				ahead -= time.Second
				fallthrough
			case at >= time.Second:
				ahead += 40 * time.Millisecond
			}
			return ahead, true
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		type step struct{ from, to, by time.Duration }
		var steps []step
		watchClock(ctx, look, now, func(from, to, by time.Duration) {
			steps = append(steps, step{from, to, by.Round(time.Millisecond)})
		})
		want := []step{
			{980 * time.Millisecond, time.Second, 40 * time.Millisecond},
			{1480 * time.Millisecond, 1500 * time.Millisecond, -time.Second},
		}
		if !slices.Equal(steps, want) {
			t.Errorf("steps %v, want %v", steps, want)
		}
	})
	if ahead, ok := timeOfDay(); ok && ahead < 0 {
		t.Errorf("the time of day is %v ahead of the time since the start", ahead)
	}
}

// TestClockSetEndsLeases: a lease that is lost early is a violation, unless the host's clock was
// set.
func TestClockSetEndsLeases(t *testing.T) {
	const ms = time.Millisecond
	events := []history.Event{
		{Kind: history.Claim, Process: 1, Call: 100 * ms, Return: 110 * ms, Key: "k", Token: "A", Mode: "try", TTL: time.Second, Permits: 1, State: "granted", Fence: 7, Attempt: 1},
		{Kind: history.Renew, Process: 1, Call: 400 * ms, Return: 410 * ms, Key: "k", Token: "A", TTL: time.Second, Error: history.Lost},
	}
	wronged := func(url string) bool { return len(judge(events, nil, nil, url, time.Second).Violations) > 0 }
	if !wronged("postgres:") {
		t.Error("a lease was lost early, and that is not a violation")
	}
	events = append(events, history.Event{Kind: history.Fault, Name: clockSet, Times: 1, Call: 200 * ms, Return: 220 * ms})
	history.Sort(events)
	if wronged("postgres:") {
		t.Error("the clock was set, and the store is accused")
	}
	if !wronged("sqlite:/srv/dibs.db") {
		t.Error("the clock was set, and a store that does not go by it is not accused")
	}
}

// TestLines: the lines of files that grow are each counted once, and a missing file counts for nothing.
func TestLines(t *testing.T) {
	dir := t.TempDir()
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	var l lines
	for _, step := range []struct {
		name, text string
		want       int
	}{{one, "a\nb\n", 2}, {one, "", 2}, {one, "c\nhalf", 3}, {two, "d\n", 4}, {one, " more\n", 5}} {
		f, err := os.OpenFile(step.name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		testkit.Must(t, err)
		_, err = f.WriteString(step.text)
		testkit.Must(t, err)
		testkit.Must(t, f.Close())
		if n := l.count([]string{one, two, filepath.Join(dir, "missing")}); n != step.want {
			t.Errorf("after %q: %d lines; want %d", step.text, n, step.want)
		}
	}
}

// TestLateLeases: a store whose workers move the time may hold a key for some ticks after its lease,
// and for some seconds under faults that keep the workers from it. Others may not.
func TestLateLeases(t *testing.T) {
	clock, kill := &fault.Fault{Name: "server-clock"}, &fault.Fault{Name: "server-kill"}
	for _, c := range []struct {
		url    string
		faults []*fault.Fault
		after  time.Duration
		wrong  bool
	}{
		{"postgres:", nil, time.Second, true},
		{"etcd:", []*fault.Fault{clock}, time.Second, false},
		{"s3:", []*fault.Fault{clock}, 3 * time.Second, true},
		{"s3:", []*fault.Fault{clock, kill}, 3 * time.Second, false},
		{"etcd:", []*fault.Fault{kill}, 13 * time.Second, true},
	} {
		at := 1100*time.Millisecond + c.after
		events := []history.Event{
			{Kind: history.Claim, Process: 1, Call: 100 * time.Millisecond, Return: 100 * time.Millisecond, Key: "k", Token: "A", Mode: "try", TTL: time.Second, Permits: 1, Weight: 1, State: "granted", Fence: 7, Attempt: 1},
			{Kind: history.Claim, Process: 1, Call: at, Return: at, Key: "k", Token: "B", Mode: "try", TTL: time.Second, Permits: 1, Weight: 1, State: "held"},
		}
		if v := judge(events, c.faults, nil, c.url, time.Second).Violations; len(v) > 0 != c.wrong {
			t.Errorf("%s: held %v after the lease: %d violations", c.url, c.after, len(v))
		}
	}
}
