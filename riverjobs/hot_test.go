package riverjobs

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/dibs-go/dibs/internal/pace"
)

// hotProcesses is how many of them work on the hot key: by default one for each processor of
// the machine that this was made on. With more, what a hand-over waits for is a processor.
var hotProcesses = flag.Int("hot-processes", 2, "how many worker processes TestHotKey starts")

// TestHotKey: a thousand jobs of one key do not hold up a thousand of others, and
// their key does not lie idle while they wait. They come all at once, to processes that
// run.
func TestHotKey(t *testing.T) {
	const (
		each = 1000
		// Of all processes together. The seats, and a quarter more, are for as many hot jobs
		// as run while River notes that one was put off, and while one comes back. They are
		// more than half of the workers, so that the Mutex is not told of those.
		workers, seats = 80, 48
	)
	url := newDatabase(t)
	h := newHost(t, hostOptions{url: url, idle: true})
	leads := newHost(t, hostOptions{url: url, queueName: "leads", queue: 1})
	for range *hotProcesses {
		w := startChild(t, childConfig{
			URL: url, Work: "hot", Workers: workers / *hotProcesses, Seats: seats / *hotProcesses, TTL: 10 * time.Second,
			Recovery: 2 * time.Minute, Patience: DefaultPatience, Timeout: time.Minute,
		})
		t.Cleanup(w.kill)
		defer w.end(t)
	}
	done := 0
	work := func(hot, other string, n int) {
		var batch []river.InsertManyParams
		for i := range n {
			batch = append(batch, river.InsertManyParams{Args: job{Of: hot, Number: i}}, river.InsertManyParams{Args: job{Of: other + fmt.Sprint(i)}})
		}
		if _, err := h.river.InsertMany(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		done += len(batch)
		leads.progress(done, func() (n int) {
			if err := leads.pool.QueryRow(t.Context(), "SELECT count(*) FROM span").Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		})
	}
	work("before", "before-", each/10) // the processes have their connections, and have worked
	slowness := probe(h)
	var still time.Duration // how long the machine stood still, if it did
	watched := pace.Watch(func(d time.Duration) {
		if d > 100*time.Millisecond {
			still = max(still, d)
		}
	})
	work("hot", "other-", each)
	watched()
	slow := slowness()

	rows, err := h.pool.Query(t.Context(), "SELECT key, number, begun, ended FROM span WHERE key NOT LIKE 'before%' ORDER BY begun")
	if err != nil {
		t.Fatal(err)
	}
	var hot []span
	var others int64 // when the last of the others was done
	for rows.Next() {
		var s span
		if err := rows.Scan(&s.Key, &s.Number, &s.Begun, &s.Ended); err != nil {
			t.Fatal(err)
		}
		if s.Key == "hot" {
			hot = append(hot, s)
		} else {
			others = max(others, s.Ended)
		}
	}
	idle := make([]time.Duration, 0, each)
	before := 0
	for i, s := range hot {
		if s.Number != i {
			t.Fatalf("the hot job %d ran at place %d", s.Number, i)
		}
		if s.Ended <= others {
			before++
		}
		if i > 0 {
			idle = append(idle, time.Duration(s.Begun-hot[i-1].Ended))
		}
	}
	slices.Sort(idle)
	if idle[0] < 0 {
		t.Errorf("two hot jobs overlapped by %v", -idle[0])
	}
	at := func(permille int) time.Duration { return idle[len(idle)*permille/1000].Round(10 * time.Microsecond) }
	t.Logf("hand-over: median %v, 90 %% %v, 99 %% %v, 99.5 %% %v, longest %v; %d hot ones were done when the others were; the server is %.1f times as slow as an idle one, and the machine stood still for %v",
		at(500), at(900), at(990), at(995), idle[len(idle)-1].Round(10*time.Microsecond), before, slow, still)
	if limit := time.Duration(float64(20*time.Millisecond) * slow); at(500) > limit {
		t.Errorf("the median hand-over takes %v; on this machine, at this moment, it may take %v", at(500), limit)
	}
	if limit := time.Duration(float64(100*time.Millisecond)*slow) + still; idle[len(idle)-1] > limit {
		t.Errorf("the key lies idle for %v; on this machine, at this moment, it may for %v", idle[len(idle)-1], limit)
	}
	if before > each/2 {
		t.Errorf("%d of %d hot jobs were done before the last of the others; they should not hold those up", before, each)
	}
}

// TestHotKeyLeavesWorkers: also where a queue has few workers and the seats are as many as
// they are by default, the jobs of one key do not hold up the others.
func TestHotKeyLeavesWorkers(t *testing.T) {
	const each = 300
	var mu sync.Mutex
	hot, other, hotBefore := 0, 0, 0
	h := newHost(t, hostOptions{queue: 10, work: func(ctx context.Context, _ *host, j *river.Job[job]) error {
		err := spend(ctx, 5*time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		switch j.Args.Of {
		case "before":
		case "hot":
			hot++
		default:
			other++
			hotBefore = hot
		}
		return err
	}})
	leads := newHost(t, hostOptions{url: h.url, queueName: "leads", queue: 1})
	insert := func(n int, of func(int) string) {
		var batch []river.InsertManyParams
		for i := range n {
			batch = append(batch, river.InsertManyParams{Args: job{Of: of(i), Number: i}})
		}
		if _, err := h.river.InsertMany(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	insert(20, func(int) string { return "before" })
	leads.progress(20, func() int { return int(h.mutex.Stats().Succeeded) })
	insert(2*each, func(i int) string {
		if i%2 == 0 {
			return "hot"
		}
		return fmt.Sprint("other ", i)
	})
	leads.progress(20+2*each, func() int { return int(h.mutex.Stats().Succeeded) })
	t.Logf("%d of %d hot ones were done before the last of %d others", hotBefore, hot, other)
	if hotBefore > each*2/3 {
		t.Errorf("the last of the others was done after %d of the %d hot ones", hotBefore, each)
	}
}

// probe measures, until it is asked, how long a key takes that nobody else wants, and
// returns how many times longer that is than on a server that has nothing else to do. It
// asks now and then only: what it takes of the processors, the jobs have not.
func probe(h *host) (slowness func() float64) {
	ctx, cancel := context.WithCancel(h.t.Context())
	var took []time.Duration
	var wg sync.WaitGroup
	wg.Go(func() {
		for spend(ctx, 20*time.Millisecond) == nil {
			begun := time.Now()
			if h.dibs.Do(ctx, "probe", func(context.Context) error { return nil }) == nil {
				took = append(took, time.Since(begun))
			}
		}
	})
	return func() float64 {
		cancel()
		wg.Wait()
		slices.Sort(took)
		return max(1, float64(took[len(took)*995/1000])/float64(4*time.Millisecond))
	}
}
