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
	const jobs, ahead, ttl = 20, 8, time.Hour
	r := ownRedis(t)
	f := newFixture(t, r, nil)
	p := plan{Work: "note", Redis: r.Addr, DB: r.DB, Store: storeURL(r), Concurrency: 13, TTL: ttl, Shutdown: 100 * time.Millisecond}
	first := startChild(t, p)
	f.enqueue(t, errand{Key: "k", Number: 1, Takes: time.Hour}.task())
	c := f.mutex.redis.(*redis.Client)
	eventually(t, "it runs", func() bool { return c.Get(t.Context(), "inside k").Val() == "1" })
	for n := 2; n <= jobs; n++ {
		f.enqueue(t, errand{Key: "k", Number: n}.task())
	}
	eventually(t, "one has found no room", func() bool { return putOffs(t, f) == 1 })
	if n := parked(t, f); n != jobs-ahead {
		t.Errorf("%d tasks are parked, want %d", n, jobs-ahead)
	}
	p.Hurried = true
	second := startChild(t, p)
	first.stop(t)
	eventually(t, "all ran", func() bool { return countNotes(t, r) == jobs })
	all := notes(t, r)
	inOrder(t, all, map[string]int{"k": jobs})
	if all[0].PID != second.pid {
		t.Error("the job was not cut off")
	}
}
