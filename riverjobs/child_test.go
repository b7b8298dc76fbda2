package riverjobs

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/dibs-go/dibs/internal/failpoint"
	"github.com/dibs-go/dibs/jobs"
)

// childVar is the variable in which a child, which is the test binary again, finds its childConfig.
const childVar = "RIVERJOBS_CHILD"

// childConfig says what a child is to do.
type childConfig struct {
	ID, URL, Redis string // Redis has the keys
	Insert         string // how it inserts a job, see inserts; "": it works jobs
	Work           string // which works, if it works jobs
	Outside        bool   // Commit does not end the key
	Unswept        bool   // its mutex does nothing in the background
	Workers, Ahead int
	TTL, Recovery  time.Duration
	Hold           time.Duration // default: Recovery
	Patience       time.Duration
	Timeout        time.Duration // of a job
	SoftStop       time.Duration // after which a stop ends the jobs' contexts
	Seed           uint64
}

// works is what children do with a job.
var works = map[string]work{
	"stuck": func(ctx context.Context, h *host, j *river.Job[job]) error {
		if err := effect(ctx, h.pool, j); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	},
	"commit": workCommit,
	"plain":  workPlain,
}

// beChild works jobs until its input ends: its parent has closed it, or has died.
func beChild(text string) error {
	var c childConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	ctx := context.Background()
	h, err := openHost(ctx, nil, hostOptions{
		url: c.URL + "&application_name=" + url.QueryEscape(c.ID), redis: c.Redis, ttl: c.TTL, queue: c.Workers, commits: !c.Outside, unswept: c.Unswept, seed: c.Seed,
		idle: c.Insert != "", outer: &outerPoints{}, inner: &innerPoints{}, work: works[c.Work],
		mutex: Options{Patience: c.Patience, Jobs: jobs.Options{Ahead: c.Ahead, Recovery: c.Recovery, Hold: cmp.Or(c.Hold, c.Recovery)}},
		river: river.Config{ID: c.ID, LeaderElectionDisabled: true, JobTimeout: c.Timeout, MaxAttempts: 100, SoftStopTimeout: c.SoftStop},
	})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	if c.Insert != "" {
		if err := inserts[c.Insert](ctx, h); err != nil {
			return err
		}
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return h.close()
}

// process is a child, as its parent sees it.
type process struct {
	*failpoint.Child
	input io.Closer
	id    string
}

// startChild starts a child that stops at the point, if it is not "", and waits until it is ready.
func startChild(t testing.TB, point string, c childConfig) *process {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVar+"="+string(text))
	in, err := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(err, outErr); err != nil {
		t.Fatal(err)
	}
	p := &process{failpoint.Start(t, point, cmd), in, c.ID}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || strings.TrimSpace(line) != "ready" {
		t.Fatalf("a child said %q, %v", line, err)
	}
	return p
}

// end asks it to end, as a deployment does, and waits for that.
func (p *process) end(t testing.TB) {
	t.Helper()
	if err := errors.Join(p.input.Close(), p.Wait()); err != nil {
		t.Error("a child:", err)
	}
}
