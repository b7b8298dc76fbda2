//go:build nightly

package riverjobs

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
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
	url := newDatabase()
	h := newHost(t, hostOptions{url: url, idle: true})
	leads := newHost(t, hostOptions{url: url, queueName: "leads", queue: 1})
	for range *hotProcesses {
		w := startChild(t, "", childConfig{
			URL: url, Work: "hot", Untold: true, Outside: true, Workers: workers / *hotProcesses, Seats: seats / *hotProcesses, TTL: 10 * time.Second,
			Recovery: 2 * time.Minute, Patience: DefaultPatience, Timeout: time.Minute,
		})
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
	work("hot", "other-", each)

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
	t.Logf("hand-over: median %v, 90 %% %v, 99 %% %v, 99.5 %% %v, longest %v; %d hot ones were done when the others were",
		at(500), at(900), at(990), at(995), idle[len(idle)-1].Round(10*time.Microsecond), before)
	if before > each/2 {
		t.Errorf("%d of %d hot jobs were done before the last of the others; they should not hold those up", before, each)
	}
}

func init() {
	works["hot"] = workHot
	besides["hot"] = func(h *host) func() {
		var writer sync.WaitGroup
		writer.Go(func() {
			if err := writeSpans(h.url, spans); err != nil {
				fmt.Fprintln(os.Stderr, "spans:", err)
			}
		})
		return func() {
			close(spans)
			writer.Wait()
		}
	}
}

// spans are those of the jobs of this process.
var spans = make(chan span, 4096)

// span is when a job ran.
type span struct {
	Key          string
	Number       int
	Begun, Ended int64 // ns
}

// workHot is a job that takes 5 ms.
func workHot(ctx context.Context, _ *host, j *river.Job[job]) error {
	begun := time.Now().UnixNano()
	if err := spend(ctx, 5*time.Millisecond); err != nil {
		return err
	}
	spans <- span{j.Args.Of, j.Args.Number, begun, time.Now().UnixNano()}
	return nil
}

// writeSpans writes down when jobs ran: four times a second, so as not to be in their way.
func writeSpans(url string, spans <-chan span) error {
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	var rows [][]any
	for open := true; open; {
		select {
		case s, ok := <-spans:
			if open = ok; ok {
				rows = append(rows, []any{s.Key, s.Number, s.Begun, s.Ended})
				continue
			}
		case <-tick.C:
		}
		if len(rows) == 0 {
			continue
		}
		_, err := conn.CopyFrom(context.Background(), pgx.Identifier{"span"}, []string{"key", "number", "begun", "ended"}, pgx.CopyFromRows(rows))
		if err != nil {
			return err
		}
		rows = rows[:0]
	}
	return nil
}
