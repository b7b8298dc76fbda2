package riverjobs

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

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

// renamed is a kind with an older name, bare one without a key, and wrong one with a tag that
// cannot be.
type (
	renamed struct {
		Of string `json:"of"`
	}
	bare  struct{}
	wrong struct {
		Of map[string]int `dibs:"key"`
	}
)

func (renamed) Kind() string          { return "renamed" }
func (renamed) KindAliases() []string { return []string{"older"} }
func (bare) Kind() string             { return "bare" }
func (wrong) Kind() string            { return "wrong" }

// TestKey: a key is the same by the arguments and by what is stored of them, and kinds share keys
// where their functions return the same. What is wrong is said before anything runs.
func TestKey(t *testing.T) {
	t.Parallel()
	m := newHost(t, hostOptions{idle: true, unswept: true}).mutex
	Key(m, func(r renamed) string { return keyOf(r.Of) })
	for _, c := range []struct {
		kind string
		args river.JobArgs
	}{
		{"job", job{Of: "it"}}, {"job", &job{Of: "it"}}, {"job", nil},
		{"renamed", renamed{Of: "it"}}, {"older", nil},
	} {
		if key, err := m.keys[c.kind](c.args, []byte(`{"of": "it"}`)); key != "of it" || err != nil {
			t.Errorf("the key of %s, %v, is %q, %v", c.kind, c.args, key, err)
		}
	}
	if _, err := m.keys["job"](nil, []byte("{")); err == nil {
		t.Error("arguments that cannot be read have a key")
	}
	for want, call := range map[string]func(*Mutex){
		"already has the kind \"job\"":         Tagged[job],
		"no field of riverjobs.bare has a tag": Tagged[bare],
		"cannot be part of a key":              Tagged[wrong],
		"was given no function":                func(m *Mutex) { Key[bare](m, nil) },
	} {
		func() {
			defer func() {
				if said, _ := recover().(string); !strings.Contains(said, want) {
					t.Errorf("it panicked with %q, want %q", said, want)
				}
			}()
			call(m)
		}()
	}
}

// TestConfigure: the error names the option that is wrong, and River's settings are read.
func TestConfigure(t *testing.T) {
	t.Parallel()
	h := newHost(t, hostOptions{idle: true, unswept: true})
	for _, o := range []struct {
		o    Options
		want string
	}{
		{Options{Patience: -1}, "Options.Patience"},
		{Options{Transactor: stopping{}}, "Options.Transactor and Tx"},
		{Options{Transactor: stopping{}, Tx: stoppingTx, Jobs: jobs.Options{Once: time.Hour}}, "Options.Transactor does not work with Jobs.Once"},
		{Options{Jobs: jobs.Options{Permits: -1}}, "Options.Permits"},
	} {
		if _, err := Configure(&river.Config{}, h.dibs, h.pool, &o.o); err == nil || !strings.Contains(err.Error(), o.want) {
			t.Errorf("Configure returned %v, want %s", err, o.want)
		}
	}
	_, noConfig := Configure(nil, h.dibs, nil, nil)
	_, noClient := Configure(&river.Config{}, nil, h.pool, nil)
	if noConfig == nil || noClient == nil {
		t.Error("Configure was given no config, or no client, and says nothing")
	}
	mine := &presence{}
	config := &river.Config{Middleware: []rivertype.Middleware{mine}, Queues: map[string]river.QueueConfig{"a": {MaxWorkers: 7}}}
	m, err := Configure(config, h.dibs, h.pool, &Options{Jobs: jobs.Options{Permits: 3}})
	h.must(nil, err)
	m.Close()
	if o := m.options; o.Patience != DefaultPatience || o.Jobs.Ahead != 10 || m.retries == nil || m.workers["a"] != 7 {
		t.Errorf("the defaults are %+v", o)
	}
	if w := config.Middleware; len(w) != 2 || w[0] != rivertype.Middleware(m) || w[1] != rivertype.Middleware(mine) {
		t.Errorf("the middleware is %v", w)
	}
}

// TestNote: a note travels in metadata beside what others have there, and replaces one that came
// with a copy.
func TestNote(t *testing.T) {
	t.Parallel()
	want := note{Key: "of it", Ticket: "t", Due: time.Unix(1, 0).UTC(), Try: 2}
	for _, text := range []string{"", "{}", `{"a":1}`, `{"a":1,"dibs_parked":true,"dibs":{"key":"another","ticket":"copied"}}`} {
		written, err := writeNote([]byte(text), want)
		if got := readMetadata(written); err != nil || got.Dibs != want || got.Parked {
			t.Errorf("%s has the note %+v, %v", written, got, err)
		}
		if strings.Contains(text, `"a"`) && !strings.Contains(string(written), `"a":1`) {
			t.Errorf("%s became %s", text, written)
		}
	}
	for _, text := range []string{"", "null", "[]", `{"dibs": 7}`, `{"dibs": {"key": 7}}`, `{"Dibs": {"key": "theirs", "ticket": "t"}, "DIBS_PARKED": true, "Snoozes": 3}`} {
		if got := readMetadata([]byte(text)); got != (metadata{}) {
			t.Errorf("%s has the note %+v", text, got)
		}
	}
	if _, err := writeNote([]byte("[]"), want); err == nil {
		t.Error("a note was written into a list")
	}
}
