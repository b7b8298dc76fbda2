package riverjobs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/dibs-go/dibs/jobs"
)

// TestStorm: 5,000 events of 200 conversations, worked by four processes that fail,
// panic and are killed, have their effects once each, in the order in which they were
// inserted, and one after the other.
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
	const (
		processes = 4
		recovery  = 40 * time.Second
	)
	url := newDatabase(t)
	// River's leader takes the jobs of dead workers back when they have run for longer
	// than any job may: here after 5 s. It looks for them every 30 s, and when it has
	// become the leader: so a new one is made again and again.
	leader := make(chan struct{})
	o := Options{Patience: time.Second, Jobs: jobs.Options{Seats: 1, Hold: recovery, Recovery: recovery}}
	leads := lead(t, url, redis, o, 5*time.Second, leader)

	config := childConfig{
		URL: url, Redis: redis, Work: "storm", Workers: 12, Seats: 6, TTL: 2 * time.Second,
		Recovery: recovery, Patience: time.Second, Timeout: 3 * time.Second,
	}
	workers := make([]*child, processes)
	for i := range workers {
		workers[i] = startChild(t, config)
	}
	t.Cleanup(func() {
		for _, w := range workers {
			w.kill()
		}
	})

	began := time.Now()
	var enqueuers sync.WaitGroup
	for half := range 2 {
		h := newHost(t, hostOptions{url: url, redis: redis, idle: true, mutex: o, river: river.Config{MaxAttempts: 100}})
		enqueuers.Go(func() { enqueue(h, half*(conversations/2), conversations/2, events) })
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
		eventually(t, 3*time.Minute, fmt.Sprint("progress before kill ", killed), func() bool {
			return done() >= (killed+1)*conversations*events/(kills+2)
		})
		i := rand.N(processes)
		t.Logf("%v: %d done, kill", time.Since(began).Round(time.Millisecond), done())
		workers[i].kill()
		workers[i] = startChild(t, config)
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

// enqueue inserts the events of some conversations, in all the ways that there are.
func enqueue(h *host, first, conversations, events int) {
	next := make([]int, conversations)
	for left := conversations * events; left > 0; {
		var batch []river.InsertManyParams
		for range min(left, 1+rand.N(8)) {
			c := rand.N(conversations)
			for next[c] == events {
				c = (c + 1) % conversations
			}
			next[c]++
			left--
			batch = append(batch, river.InsertManyParams{Args: job{Of: fmt.Sprint(first + c), Number: next[c]}})
		}
		if err := insertSomehow(h, batch); err != nil {
			h.t.Error(err)
			return
		}
	}
}

func insertSomehow(h *host, batch []river.InsertManyParams) error {
	ctx := h.t.Context()
	way := rand.N(4)
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
