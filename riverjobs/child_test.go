package riverjobs

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/dibs-go/dibs/jobs"
)

// childVar is the variable in which a worker process, which is the test binary again,
// finds what it is to be.
const childVar = "RIVERJOBS_CHILD"

// childConfig is that.
type childConfig struct {
	URL            string
	Redis          string // that has the keys
	Work           string // storm, hot or stuck
	Workers, Seats int
	TTL            time.Duration
	Recovery       time.Duration
	Patience       time.Duration
	Timeout        time.Duration // of a job
	SoftStop       time.Duration // after which a stop ends the jobs' contexts
}

// beChild works jobs until it is told to end: by SIGTERM, or by the end of its input,
// which comes when its parent has died.
func beChild(text string) error {
	var c childConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	spans := make(chan span, 4096)
	work := map[string]func(context.Context, *host, *river.Job[job]) error{
		"storm": workStorm,
		"hot":   func(ctx context.Context, _ *host, j *river.Job[job]) error { return workHot(ctx, j, spans) },
		"stuck": workStuck,
	}[c.Work]
	h, err := openHost(ctx, nil, hostOptions{
		url: c.URL, redis: c.Redis, ttl: c.TTL, queue: c.Workers, commits: c.Work != "hot", untold: c.Work == "hot", work: work,
		mutex: Options{Patience: c.Patience, Jobs: jobs.Options{Seats: c.Seats, Recovery: c.Recovery, Hold: c.Recovery}},
		river: river.Config{LeaderElectionDisabled: true, JobTimeout: c.Timeout, MaxAttempts: 100, SoftStopTimeout: c.SoftStop},
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	var writer sync.WaitGroup
	writer.Go(func() {
		if err := writeSpans(h.url, spans); err != nil {
			fmt.Fprintln(os.Stderr, "spans:", err)
		}
	})
	<-ctx.Done()
	err = h.close()
	close(spans)
	writer.Wait()
	return err
}

// workStorm is a job that may take long, fail or panic, and whose process may be
// killed at any moment.
func workStorm(ctx context.Context, h *host, j *river.Job[job]) error {
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
	takes := rand.N(10 * time.Millisecond)
	if rand.N(20) == 0 {
		takes = 50 * time.Millisecond
	}
	if err := spend(ctx, takes); err != nil {
		return err
	}
	switch n := rand.N(100); {
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

// workStuck is a job that would never end.
func workStuck(ctx context.Context, h *host, j *river.Job[job]) error {
	if _, err := h.pool.Exec(ctx, "INSERT INTO mark (key, number, what) VALUES ($1, $2, 'stuck')", j.Args.Of, j.Args.Number); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// span is when a job ran.
type span struct {
	Key          string
	Number       int
	Begun, Ended int64 // ns
}

// workHot is a job that takes 5 ms.
func workHot(ctx context.Context, j *river.Job[job], spans chan<- span) error {
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

// child is a worker process.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
}

// startChild starts a worker process and waits until it works.
func startChild(t testing.TB, c childConfig) *child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &child{cmd: exec.Command(self)}
	p.cmd.Env = append(os.Environ(), childVar+"="+asJSON(c))
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != "ready" {
		p.kill()
		t.Fatalf("a worker process said %q, %v", line, err)
	}
	return p
}

// kill ends it at once, in the middle of whatever it does.
func (p *child) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// end asks it to end, as whoever deploys a new version does, and waits for that.
func (p *child) end(t testing.TB) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Error("a worker process:", err)
	}
}
