package riverjobs

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/stores/memstore"
)

// TestConfigureWarns: numbers that cannot keep the order after a crash, or that let River run a
// job twice, are logged by the logger of River's configuration.
func TestConfigureWarns(t *testing.T) {
	t.Parallel()
	const order, twice = "later jobs pass a job whose worker died", "to a second worker"
	queues := map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}}
	for _, c := range []struct {
		name    string
		config  river.Config
		options Options
		want    []string
	}{
		{"defaults", river.Config{Queues: queues}, Options{}, []string{order}},
		{"the README's", river.Config{Queues: queues, RescueStuckJobsAfter: 5 * time.Minute}, Options{Jobs: jobs.Options{CrashGrace: 6 * time.Minute}}, nil},
		{"too little for the rescuer's rounds", river.Config{Queues: queues, RescueStuckJobsAfter: 5 * time.Minute}, Options{Jobs: jobs.Options{CrashGrace: 5*time.Minute + 30*time.Second}}, []string{order}},
		{"a long timeout", river.Config{Queues: queues, JobTimeout: 4 * time.Minute, RescueStuckJobsAfter: 5 * time.Minute}, Options{Jobs: jobs.Options{CrashGrace: 6 * time.Minute}}, []string{twice}},
		{"a long timeout, and River's default", river.Config{Queues: queues, JobTimeout: 2 * time.Hour}, Options{Jobs: jobs.Options{CrashGrace: 2 * time.Hour}}, []string{order}},
		{"long patience", river.Config{Queues: queues, RescueStuckJobsAfter: 5 * time.Minute}, Options{Patience: 5 * time.Minute}, []string{order, twice}},
		{"no order", river.Config{Queues: queues}, Options{Jobs: jobs.Options{Policy: jobs.Skip}}, nil},
		{"it works no jobs", river.Config{}, Options{}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			store, err := memstore.New(nil)
			testkit.Must(t, err)
			defer store.Close()
			client, err := dibs.New(store, nil)
			testkit.Must(t, err)
			defer client.Close()
			pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none") // it connects when it is used
			testkit.Must(t, err)
			defer pool.Close()
			var log strings.Builder
			c.config.Logger = slog.New(slog.NewTextHandler(&log, nil))
			m, err := Configure(&c.config, client, pool, &c.options)
			testkit.Must(t, err)
			m.Close()
			if n := strings.Count(log.String(), "level=WARN msg=\"riverjobs: "); n != len(c.want) {
				t.Errorf("%d warnings, want %d: %s", n, len(c.want), log.String())
			}
			for _, want := range c.want {
				if !strings.Contains(log.String(), want) {
					t.Errorf("no warning says %q: %s", want, log.String())
				}
			}
		})
	}
}

// TestOneLineAJobInRiversLog: each job has one line at DEBUG in the log of River's configuration,
// if it ran at once, waited in a worker, or was requeued.
func TestOneLineAJobInRiversLog(t *testing.T) {
	t.Parallel()
	var log testkit.Output
	h, _, gate, first := gatedHost(t, hostOptions{logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), queue: 4})
	rows := append(h.inserts("it", 2, 5), first)
	testkit.Eventually(t, "two wait, and one was requeued", func() bool { s := h.mutex.Stats(); return s.Waiting == 2 && s.Requeued > 0 })
	close(gate)
	h.completed(rows...)
	digest := h.dibs.Key(keyOf("it")).Digest()
	for _, row := range rows {
		id := fmt.Sprint(" job=", row.ID, "@")
		if n, all := len(log.With("level=DEBUG msg=\"dibs: job succeeded\" key="+digest+" kind=job", id)), len(log.With("dibs: ", id)); n != 1 || all != 1 {
			t.Errorf("job %d has %d lines, and %d that say that it succeeded", row.ID, all, n)
		}
	}
}
