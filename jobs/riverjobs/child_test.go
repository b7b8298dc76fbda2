package riverjobs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
)

// childConfig says what a child is to do.
type childConfig struct {
	ID, URL, Redis  string // Redis has the keys
	Insert          string // how it inserts a job, see inserts; "": it works jobs
	Work            string // which works, if it works jobs
	Outside         bool   // Commit does not end the key
	Unswept         bool   // its mutex does nothing in the background
	Workers, Ahead  int
	TTL, CrashGrace time.Duration
	Grace           time.Duration // default: CrashGrace
	Patience        time.Duration
	Timeout         time.Duration // of a job
	SoftStop        time.Duration // after which a stop ends the jobs' contexts
	Seed            uint64
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
func beChild(args []string) error {
	var c childConfig
	if err := json.Unmarshal([]byte(args[0]), &c); err != nil {
		return err
	}
	ctx := context.Background()
	h, err := openHost(ctx, nil, hostOptions{
		url: c.URL + "&application_name=" + url.QueryEscape(c.ID), redis: c.Redis, ttl: c.TTL, queue: c.Workers, commits: !c.Outside, unswept: c.Unswept, seed: c.Seed,
		idle: c.Insert != "", outer: &outerPoints{}, inner: &innerPoints{}, work: works[c.Work],
		mutex: Options{Patience: c.Patience, Jobs: jobs.Options{Ahead: c.Ahead, CrashGrace: c.CrashGrace, Grace: cmp.Or(c.Grace, c.CrashGrace)}},
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

// startChild starts a child that stops at the point, if it is not "", and waits until it is ready.
func startChild(t testing.TB, point string, c childConfig) *failpoint.Child {
	t.Helper()
	text, err := json.Marshal(c)
	testkit.Must(t, err)
	child := failpoint.Start(t, point, testkit.Child("river", string(text)))
	child.Says() // it is ready
	return child
}
