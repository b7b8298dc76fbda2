package asynqjobs

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// TestShutdown: a process that is shut down gives its key up at once, though a lease
// lasts much longer, and what waits there comes back in order.
func TestShutdown(t *testing.T) {
	t.Parallel()
	const jobs, ttl = 20, time.Minute // more than there are seats
	r := ownRedis(t)
	f := newFixture(t, r, nil)
	p := plan{Work: "note", Redis: r.Addr, DB: r.DB, Store: storeURL(r), Concurrency: 12, TTL: ttl, Shutdown: 100 * time.Millisecond}
	first := startChild(t, p)
	f.enqueue(t, errand{Key: "k", Number: 1, Takes: time.Hour}.task())
	c := f.worker.redis.(*redis.Client)
	eventually(t, 30*time.Second, "it runs", func() bool { return c.Get(t.Context(), "inside k").Val() == "1" })
	for n := 2; n <= jobs; n++ {
		f.enqueue(t, errand{Key: "k", Number: n}.task())
	}
	eventually(t, 30*time.Second, "all that have no seat are put off", func() bool { return putOffs(t, f) >= jobs-12 })
	p.Hurried = true
	second := startChild(t, p)
	stopped := time.Now()
	first.stop(t)
	ended := time.Since(stopped)
	eventually(t, ttl*3/4, "all ran", func() bool { return countNotes(t, r) == jobs })
	all := notes(t, r)
	inOrder(t, all, map[string]int{"k": jobs})
	if all[0].PID != second.pid() {
		t.Error("the job was not cut off")
	}
	t.Logf("the process ended after %v; the key's next job began after %v, and all were done after %v",
		ended.Round(time.Millisecond), all[0].Begin.Sub(stopped).Round(time.Millisecond), all[jobs-1].End.Sub(stopped).Round(time.Millisecond))
	if d := all[0].Begin.Sub(stopped); d > ended+10*time.Second {
		t.Errorf("the key was free after %v only", d)
	}
}

// TestShortLease: jobs that take five times as long as a lease do not overlap.
func TestShortLease(t *testing.T) {
	t.Parallel()
	const jobs = 4
	r := ownRedis(t)
	f := newFixture(t, r, nil)
	p := plan{Work: "note", Redis: r.Addr, DB: r.DB, Store: storeURL(r), Concurrency: 4, TTL: time.Second}
	for range 2 {
		startChild(t, p)
	}
	for n := range jobs {
		f.enqueue(t, errand{Key: "k", Number: n + 1, Takes: 5 * time.Second}.task())
	}
	eventually(t, 2*time.Minute, "all ran", func() bool { return countNotes(t, r) == jobs })
	inOrder(t, notes(t, r), map[string]int{"k": jobs})
}
