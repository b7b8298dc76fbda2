//go:build nightly

package riverjobs

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/store"
)

// stormSeed begins everything that happens by chance, but what the machine decides.
var stormSeed = flag.Uint64("storm-seed", 0, "the seed of TestStorm and TestStormRedis; 0: any")

// TestStorm: 5,000 events of 200 conversations, worked by four processes that fail, panic and are
// killed at any moment, have their effects once each, in the order in which they were inserted, and
// one after the other.
func TestStorm(t *testing.T) {
	storm(t, "", 200, 25, 8)
}

// TestStormRedis is the same with the keys elsewhere, and smaller.
func TestStormRedis(t *testing.T) {
	storm(t, servertest.Redis(scope, nil).URL(), 40, 15, 3)
}

func storm(t *testing.T, redis string, conversations, events, kills int) {
	t.Parallel()
	seed := cmp.Or(*stormSeed, rand.Uint64())
	r := rand.New(rand.NewPCG(seed, 0))
	const crashGrace = 40 * time.Second
	url := NewDatabase()
	config := childConfig{
		URL: url, Redis: redis, Work: "storm", Workers: 12, Ahead: 3, TTL: 2 * time.Second,
		CrashGrace: crashGrace, Patience: time.Second, Timeout: 3 * time.Second, Seed: seed, Outside: redis != "",
	}
	type worker struct {
		*failpoint.Child
		id string
	}
	start := func() worker {
		config.ID = fmt.Sprint("worker-", rand.Uint64()) // without a space, which the name of a connection has as another character
		return worker{startChild(t, "", config), config.ID}
	}
	workers := []worker{start(), start(), start(), start()}
	o := hostOptions{
		url: url, redis: redis, commits: redis == "", mutex: Options{Jobs: jobs.Options{Ahead: 3, Grace: crashGrace, CrashGrace: crashGrace}},
		work: workStorm, river: river.Config{MaxAttempts: 100}, // it schedules what is tried again
	}
	h := newHost(t, o)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("again: go test -race -tags nightly -run '^%s$' . -storm-seed %d", t.Name(), seed)
			h.logUnfinished()
		}
	})
	o.idle = true
	var enqueuers sync.WaitGroup
	for half := range 2 {
		h := newHost(t, o)
		enqueuers.Go(func() {
			enqueue(h, rand.New(rand.NewPCG(seed, uint64(half+1))), half*(conversations/2), conversations/2, events)
		})
	}
	for killed := range kills {
		// Spread over the work, however fast the machine does it.
		h.progress((killed + 1) * conversations * events / (kills + 2))
		w := &workers[r.IntN(len(workers))]
		w.Kill()
		t.Logf("killed %s at %s", w.id, time.Now().UTC().Format("15:04:05.000"))
		h.rescue(w.id) // River's rescuer does this, after minutes
		*w = start()
	}
	h.progress(conversations * events)
	enqueuers.Wait()
	for _, w := range workers {
		w.End()
	}
	bad := func(what, sql string, args ...any) {
		t.Helper()
		if n := h.count(sql, args...); n > 0 {
			t.Errorf("%d %s", n, what)
		}
	}
	bad("conversations do not have all their effects once each in their order", `SELECT $1 - count(*) FROM (SELECT key FROM effect
		GROUP BY key HAVING array_agg(number ORDER BY seq) = (SELECT array_agg(i) FROM generate_series(1, $2::int) i)) ok`, conversations, events)
	// An attempt that was killed has a beginning and no end.
	bad("attempts ended after another one of their key had begun", `SELECT count(*) FROM (SELECT what, attempt,
		lag(attempt) OVER (PARTITION BY key ORDER BY seq) AS before FROM mark) m WHERE what = 'end' AND attempt <> before`)
	bad("jobs are not completed", "SELECT count(*) FROM river_job WHERE state <> 'completed'")
}

// progress waits until there are n effects. It may take as long as there are more and more.
func (h *host) progress(n int) {
	h.t.Helper()
	count := func() int { return h.count("SELECT count(*) FROM effect") }
	for last := count(); last < n; last = count() {
		testkit.Eventually(h.t, fmt.Sprintf("more than %d of %d", last, n), func() bool { return count() > last })
	}
}

// logUnfinished logs what is known of the jobs that are not completed and of their keys.
func (h *host) logUnfinished() {
	ctx := context.Background()
	rows, _ := h.pool.Query(ctx, "SELECT now()::text || ' ' || to_jsonb(j)::text FROM river_job j WHERE state <> 'completed' ORDER BY id LIMIT 20")
	texts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	h.t.Log(strings.Join(texts, "\n"), err)
	for e, err := range h.store.(store.Inspector).List(ctx, store.Query{}) {
		if err != nil || e.Waiters+e.Reserved > 0 || len(e.Runs) > 0 {
			h.t.Logf("%+v, %v", e, err)
		}
	}
}

func init() { works["storm"] = workStorm }

// workStorm is a job that may take long, fail or panic, and whose process may be killed at any
// moment.
func workStorm(ctx context.Context, h *host, j *river.Job[job]) error {
	r := rand.New(rand.NewPCG(h.seed, uint64(j.ID)<<16|uint64(j.Attempt)<<8|uint64(readMetadata(j.Metadata).Snoozes)))
	const markSQL = "INSERT INTO mark (key, number, what, attempt) VALUES ($1, $2, $3, $4)"
	begin := []any{j.Args.Of, j.Args.Number, "begin", fmt.Sprint(rand.Uint64())}
	end := []any{begin[0], begin[1], "end", begin[3]}
	if _, err := h.pool.Exec(ctx, markSQL, begin...); err != nil {
		return err
	}
	takes := time.Duration(r.Int64N(int64(10 * time.Millisecond)))
	if r.IntN(20) == 0 {
		takes = 50 * time.Millisecond
	}
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if n := r.IntN(100); n < 7 {
		if _, err := h.pool.Exec(ctx, markSQL, end...); n < 5 || err != nil {
			return errors.Join(errors.New("bad luck"), err)
		}
		panic("very bad luck")
	}
	return Commit(ctx, j, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, markSQL, end...); err != nil {
			return err
		}
		return effect(ctx, tx, j)
	})
}

// enqueue inserts the events of some conversations, in all the ways that there are.
func enqueue(h *host, r *rand.Rand, first, conversations, events int) {
	ctx := h.t.Context()
	next := make([]int, conversations)
	for left := conversations * events; left > 0; {
		var batch []river.InsertManyParams
		for range min(left, 1+r.IntN(8)) {
			c := r.IntN(conversations)
			for next[c] == events {
				c = (c + 1) % conversations
			}
			next[c]++
			left--
			batch = append(batch, river.InsertManyParams{Args: job{Of: fmt.Sprint(first + c), Number: next[c]}})
		}
		var err error
		if r.IntN(2) == 0 {
			_, err = h.river.InsertManyFast(ctx, batch)
		} else {
			_, err = h.insertMany(ctx, batch, true)
		}
		if err != nil {
			h.t.Error(err)
			return
		}
	}
}
