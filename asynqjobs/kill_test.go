package asynqjobs

import (
	"slices"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// killed starts a process with one worker for tasks that are enqueued, kills it at a
// point, and has Asynq notice that.
func killed(t *testing.T, f *fixture, point string, p plan, ids ...string) {
	t.Helper()
	p.Concurrency = 1
	victim, _ := launch(t, point, p)
	victim.Await()
	victim.Kill()
	c := f.mutex.redis.(*redis.Client)
	if err := c.Del(t.Context(), "inside k").Err(); err != nil { // the dead are not inside
		t.Fatal(err)
	}
	// A minute passes, as far as Asynq knows; it looks when a server starts.
	for _, id := range ids {
		old := redis.Z{Member: id, Score: float64(time.Now().Add(-time.Minute).Unix())}
		if err := c.ZAddXX(t.Context(), "asynq:{default}:lease", old).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKilled: wherever a worker dies, its task comes back before the next one of its
// key, and runs again unless it is remembered that it has run.
func TestKilled(t *testing.T) {
	t.Parallel()
	for point, want := range map[string][]int{
		"before the claim":      {1, 2},
		"after the grant":       {1, 2},
		"in the handler":        {1, 2},
		"before the settlement": {1, 1, 2},
		"after the settlement":  {1, 2},
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			r := ownRedis(t)
			f := newFixture(t, r, nil)
			p := plan{
				Work: "note", Redis: r.Addr, DB: r.DB, Store: storeURL(r), Concurrency: 2,
				TTL: time.Second, Hold: time.Hour, Recovery: time.Hour, Once: time.Hour,
			}
			first := f.enqueue(t, errand{Key: "k", Number: 1}.task())
			next := f.enqueue(t, errand{Key: "k", Number: 2}.task())
			killed(t, f, point, p, first.ID)
			startChild(t, p)
			f.gone(t, first.ID)
			f.gone(t, next.ID)
			var got []int
			for _, n := range notes(t, r) {
				got = append(got, n.Number)
				if !n.Alone {
					t.Errorf("number %d ran beside another", n.Number)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%v ran, want %v", got, want)
			}
		})
	}
}

// TestKilledOnLastAttempt: a task whose worker died on its last attempt does not run
// again, and the next one of its key does.
func TestKilledOnLastAttempt(t *testing.T) {
	t.Parallel()
	r := ownRedis(t)
	f := newFixture(t, r, nil)
	p := plan{Work: "note", Redis: r.Addr, DB: r.DB, Store: storeURL(r), Concurrency: 2, TTL: time.Second, Hold: time.Hour, Recovery: time.Hour}
	info := f.enqueue(t, errand{Key: "k", Number: 1}.task(asynq.MaxRetry(0)))
	next := f.enqueue(t, errand{Key: "k", Number: 2}.task())
	killed(t, f, "in the handler", p, info.ID)
	startChild(t, p)
	f.gone(t, next.ID)
	if all := notes(t, r); len(all) != 1 || all[0].Number != 2 {
		t.Errorf("%+v ran, want number 2 alone", all)
	}
	if got := f.becomes(t, info.ID, asynq.TaskStateArchived); got.LastErr != refusal {
		t.Errorf("it was archived with %q", got.LastErr)
	}
}
