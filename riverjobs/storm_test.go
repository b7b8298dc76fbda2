//go:build nightly

package riverjobs

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/dibs-go/dibs/internal/failpoint"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/jobs"
)

// stormSeed begins everything that happens by chance, but what the machine decides.
var stormSeed = flag.Uint64("storm-seed", 0, "the seed of TestStorm and TestStormRedis; 0: any")

// sharedRedis is a Redis for all tests that want one.
var sharedRedis = sync.OnceValue(func() *servertest.RedisServer { return servertest.Redis(scope, nil) })

// TestStorm: 5,000 events of 200 conversations, worked by four processes that fail,
// panic and are killed at any moment, have their effects once each, in the order in which
// they were inserted, and one after the other.
func TestStorm(t *testing.T) {
	t.Parallel()
	storm(t, "", 200, 25, 8)
}

// TestStormRedis is the same with the keys elsewhere, and smaller.
func TestStormRedis(t *testing.T) {
	t.Parallel()
	storm(t, sharedRedis().URL(), 40, 15, 3)
}

func storm(t *testing.T, redis string, conversations, events, kills int) {
	seed := cmp.Or(*stormSeed, rand.Uint64())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("again: go test -race -tags nightly -run '^%s$' . -storm-seed %d", t.Name(), seed)
		}
	})
	r := rand.New(rand.NewPCG(seed, 0))
	const (
		processes = 4
		recovery  = 40 * time.Second
	)
	url := newDatabase()
	// River's leader takes the jobs of dead workers back when they have run for longer
	// than any job may: here after 5 s. It looks for them every 30 s, and when it has
	// become the leader: so a new one is made again and again.
	leader := make(chan struct{})
	o := Options{Patience: time.Second, Jobs: jobs.Options{Seats: 1, Hold: recovery, Recovery: recovery}}
	leads := lead(t, url, redis, o, 5*time.Second, leader)

	config := childConfig{
		URL: url, Redis: redis, Work: "storm", Workers: 12, Seats: 6, TTL: 2 * time.Second,
		Recovery: recovery, Patience: time.Second, Timeout: 3 * time.Second, Seed: seed, Outside: redis != "",
	}
	workers := make([]*process, processes)
	for i := range workers {
		workers[i] = startChild(t, "", config)
	}

	began := time.Now()
	var enqueuers sync.WaitGroup
	for half := range 2 {
		h := newHost(t, hostOptions{url: url, redis: redis, idle: true, mutex: o, river: river.Config{MaxAttempts: 100}})
		enqueuers.Go(func() {
			enqueue(h, rand.New(rand.NewPCG(seed, uint64(half+1))), half*(conversations/2), conversations/2, events)
		})
	}

	h := newHost(t, hostOptions{url: url, idle: true})
	done := func() (n int) {
		if err := h.pool.QueryRow(t.Context(), "SELECT count(*) FROM effect").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for killed := range kills {
		// Spread over the work, however fast the machine does it.
		h.progress((killed+1)*conversations*events/(kills+2), done)
		i := r.IntN(processes)
		t.Logf("%v: %d done, kill", time.Since(began).Round(time.Millisecond), done())
		workers[i].Kill()
		workers[i] = startChild(t, "", config)
	}
	h.progress(conversations*events, done)
	enqueuers.Wait()
	t.Logf("%d events in %v, %d kills", conversations*events, time.Since(began).Round(time.Millisecond), kills)
	for _, w := range workers {
		w.end(t)
	}
	close(leader)
	leads.Wait()
	checkStorm(t, h, conversations, events)
}

func init() { works["storm"] = workStorm }

// workStorm is a job that may take long, fail or panic, and whose process may be
// killed at any moment.
func workStorm(ctx context.Context, h *host, j *river.Job[job]) error {
	r := rand.New(rand.NewPCG(h.seed, uint64(j.ID)<<16|uint64(j.Attempt)<<8|uint64(snoozes(j.JobRow))))
	attempt := fmt.Sprint(rand.Uint64())
	mark := func(ctx context.Context, by interface {
		QueryRow(context.Context, string, ...any) pgx.Row
	}, what string) error {
		return by.QueryRow(ctx, "INSERT INTO mark (key, number, what, attempt) VALUES ($1, $2, $3, $4) RETURNING 0",
			j.Args.Of, j.Args.Number, what, attempt).Scan(new(int))
	}
	if err := mark(ctx, h.pool, "begin"); err != nil {
		return err
	}
	takes := time.Duration(r.Int64N(int64(10 * time.Millisecond)))
	if r.IntN(20) == 0 {
		takes = 50 * time.Millisecond
	}
	if err := spend(ctx, takes); err != nil {
		return err
	}
	switch n := r.IntN(100); {
	case n < 5:
		return errors.Join(errors.New("bad luck"), mark(ctx, h.pool, "end"))
	case n < 7:
		_ = mark(ctx, h.pool, "end")
		panic("very bad luck")
	}
	return Commit(ctx, j, func(ctx context.Context, tx pgx.Tx) error {
		if err := mark(ctx, tx, "end"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "INSERT INTO effect (key, number) VALUES ($1, $2)", j.Args.Of, j.Args.Number)
		return err
	})
}

// enqueue inserts the events of some conversations, in all the ways that there are.
func enqueue(h *host, r *rand.Rand, first, conversations, events int) {
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
		if err := insertSomehow(h, r.IntN(4), batch); err != nil {
			h.t.Error(err)
			return
		}
	}
}

func insertSomehow(h *host, way int, batch []river.InsertManyParams) error {
	ctx := h.t.Context()
	if way == 0 {
		for _, p := range batch {
			if _, err := h.river.Insert(ctx, p.Args, nil); err != nil {
				return err
			}
		}
		return nil
	}
	if way == 1 {
		_, err := h.river.InsertManyFast(ctx, batch)
		return err
	}
	tx, err := h.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx))
	if way == 2 {
		_, err = InsertManyTx(ctx, h.river, tx, batch)
	} else {
		for _, p := range batch {
			if _, err = InsertTx(ctx, h.river, tx, p.Args, nil); err != nil {
				break
			}
		}
	}
	if err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// lead makes one leader after the other, until stop is closed.
func lead(t *testing.T, url, redis string, o Options, rescue time.Duration, stop <-chan struct{}) *sync.WaitGroup {
	var wg sync.WaitGroup
	wg.Go(func() {
		for over := false; !over; {
			h, err := openHost(context.Background(), t, hostOptions{
				url: url, redis: redis, mutex: o, queueName: "leads", queue: 1,
				river: river.Config{JobTimeout: rescue * 3 / 5, RescueStuckJobsAfter: rescue},
			})
			if err != nil {
				t.Error("leader:", err)
				return
			}
			term := time.NewTimer(3 * time.Second)
			select {
			case <-stop:
				over = true
			case <-term.C:
			}
			term.Stop()
			if err := h.close(); err != nil {
				t.Error("leader:", err)
			}
		}
	})
	return &wg
}

// checkStorm looks at what was written.
func checkStorm(t *testing.T, h *host, conversations, events int) {
	t.Helper()
	rows, _ := h.pool.Query(t.Context(), "SELECT key, number FROM effect ORDER BY seq")
	effects := map[string][]int{}
	var key string
	var number int
	for rows.Next() {
		if err := rows.Scan(&key, &number); err != nil {
			t.Fatal(err)
		}
		effects[key] = append(effects[key], number)
	}
	if len(effects) != conversations || rows.Err() != nil {
		t.Fatalf("effects of %d conversations, %v", len(effects), rows.Err())
	}
	for key, numbers := range effects {
		if len(numbers) != events || !slices.IsSorted(numbers) || slices.Compact(slices.Clone(numbers))[len(numbers)-1] != events {
			t.Errorf("conversation %s has the effects %v", key, numbers)
		}
	}
	// An attempt that was killed has a beginning and no end.
	rows, _ = h.pool.Query(t.Context(), "SELECT key, what, attempt FROM mark ORDER BY seq")
	open := map[string]string{}
	attempts, overlaps := 0, 0
	var what, attempt string
	for rows.Next() {
		if err := rows.Scan(&key, &what, &attempt); err != nil {
			t.Fatal(err)
		}
		if what == "begin" {
			open[key] = attempt
			attempts++
		} else if open[key] != attempt {
			overlaps++
			t.Errorf("conversation %s: an attempt ended after another one had begun", key)
		}
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	var notCompleted int
	if err := h.pool.QueryRow(t.Context(), "SELECT count(*) FROM river_job WHERE state <> 'completed'").Scan(&notCompleted); err != nil || notCompleted > 0 {
		t.Errorf("%d jobs are not completed, %v", notCompleted, err)
	}
	t.Logf("%d attempts", attempts)
}

// progress waits until count returns n. If that does not rise, it says how River and the
// store have the jobs, and the test ends.
func (h *host) progress(n int, count func() int) {
	h.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	most, since := -1, time.Now()
	for ; most < n; <-tick.C {
		switch now := count(); {
		case now > most:
			most, since = now, time.Now()
		case time.Since(since) > failpoint.Limit:
			h.report()
			h.t.Fatalf("%d of %d are done, and no more in %v", most, n, failpoint.Limit)
		}
	}
}

// report says how River and the store have the jobs.
func (h *host) report() {
	for _, sql := range []string{
		`SELECT format('%s: %s, tried %s ago, scheduled in %s, first %s', state, count(*),
			max(now() - attempted_at), max(scheduled_at - now()), (array_agg(args || metadata ORDER BY id))[1])
			FROM river_job GROUP BY state`,
		// The first places, and how River has their jobs.
		`SELECT format('place %s, kind %s, ends in %s, hold %s, pressed %s: job %s %s, tried %s times, %s ago', w.seq, w.kind,
			w.ends - now(), w.hold, w.pressed, j.args, j.state, j.attempt, now() - j.attempted_at)
			FROM (SELECT * FROM dibs_waiter ORDER BY k, seq LIMIT 10) w
			LEFT JOIN river_job j ON j.metadata->'dibs'->>'ticket' LIKE 'dibs1.' || rtrim(translate(encode(w.token, 'base64'), '+/', '-_'), '=') || '.%'`,
		`SELECT format('key %s: busy %s, held until %s from now, %s abandoned', encode(k, 'escape'), busy, ends - now(), abandoned)
			FROM dibs_key WHERE queued LIMIT 5`,
	} {
		rows, err := h.pool.Query(context.Background(), sql)
		if err != nil {
			h.t.Log(err)
			continue
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		h.t.Log(strings.Join(lines, "\n"), err)
	}
}

// spend takes that long, as work does.
func spend(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
