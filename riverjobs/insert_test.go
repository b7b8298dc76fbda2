package riverjobs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
)

// TestRollback: what is rolled back is in nobody's way for longer than Hold, and not
// at all where places are taken in the transaction.
func TestRollback(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		redis bool
		in    bool // the transaction has the places
	}{
		{"places in the transaction", false, true},
		{"places outside", false, false},
		{"places in Redis", true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var l journal
			o := hostOptions{
				work: func(_ context.Context, _ *host, j *river.Job[job]) error {
					return l.run(j.Args.Number, func() error { return nil })
				},
				mutex: Options{Jobs: jobs.Options{Hold: time.Second}},
			}
			if c.redis {
				o.redis = sharedRedis().URL()
			}
			h := newHost(t, o)
			tx, err := h.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			if c.in {
				_, err = InsertTx(ctx, h.river, tx, job{Of: "it", Number: 1}, nil)
			} else {
				_, err = h.river.InsertTx(ctx, tx, job{Of: "it", Number: 1}, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			if n := h.waiting("it"); (n == 0) != c.in {
				t.Errorf("the key has %d places before the end of the transaction", n)
			}
			if err := tx.Rollback(ctx); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			h.await(h.insert("it", 2, nil).ID, rivertype.JobStateCompleted)
			l.check(t, 2)
			took := time.Since(began)
			t.Logf("the next one was completed after %v", took.Round(time.Millisecond))
			if !c.in && took < 900*time.Millisecond {
				t.Errorf("the place was in the way for %v; Hold is a second", took)
			}
			if took > 15*time.Second {
				t.Errorf("the next one was completed after %v", took)
			}
		})
	}
}

// TestInsertTx: places are there when the transaction commits, in its order.
func TestInsertTx(t *testing.T) {
	t.Parallel()
	h := newHost(t, hostOptions{idle: true})
	tx, err := h.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var batch []river.InsertManyParams
	for n := range 3 {
		batch = append(batch, river.InsertManyParams{Args: job{Of: "it", Number: n}}, river.InsertManyParams{Args: job{Of: "other", Number: n}})
	}
	if _, err := InsertManyTx(t.Context(), h.river, tx, batch); err != nil {
		t.Fatal(err)
	}
	if n, err := h.river.InsertManyFastTx(In(t.Context(), tx), tx, batch); n != 6 || err != nil {
		t.Fatal(n, err)
	}
	if h.waiting("it") != 0 || h.waiting("other") != 0 {
		t.Error("there are places before the commit")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h.waiting("it") != 6 || h.waiting("other") != 6 {
		t.Errorf("%d and %d places, want 6 each", h.waiting("it"), h.waiting("other"))
	}
}

// refusing is a hook that refuses jobs.
type refusing struct{ river.HookDefaults }

func (*refusing) InsertBegin(_ context.Context, p *rivertype.JobInsertParams) error {
	if j, ok := p.Args.(job); ok && j.Number < 0 {
		return errors.New("refused")
	}
	return nil
}

// TestNotInserted: a job that is not inserted gives its place back, and one for later
// takes none.
func TestNotInserted(t *testing.T) {
	t.Parallel()
	unique := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
	for _, c := range []struct {
		name   string
		insert func(*host) error
		places int
	}{
		{"refused", func(h *host) error {
			if _, err := h.river.Insert(h.t.Context(), job{Of: "it", Number: -1}, nil); err == nil {
				return errors.New("it should be refused")
			}
			return nil
		}, 0},
		{"one of many refused", func(h *host) error {
			if _, err := h.river.InsertMany(h.t.Context(), []river.InsertManyParams{{Args: job{Of: "it"}}, {Args: job{Of: "it", Number: -1}}}); err == nil {
				return errors.New("it should be refused")
			}
			return nil
		}, 0},
		{"duplicates", func(h *host) error {
			h.insert("it", 1, unique)
			h.insert("it", 1, unique)
			_, err := h.river.InsertMany(h.t.Context(), []river.InsertManyParams{{Args: job{Of: "it", Number: 1}, InsertOpts: unique}, {Args: job{Of: "it", Number: 2}, InsertOpts: unique}})
			return err
		}, 2},
		{"duplicates in a transaction", func(h *host) error {
			h.insert("it", 1, unique)
			tx, err := h.pool.Begin(h.t.Context())
			if err != nil {
				return err
			}
			if _, err := InsertManyTx(h.t.Context(), h.river, tx, []river.InsertManyParams{{Args: job{Of: "it", Number: 1}, InsertOpts: unique}, {Args: job{Of: "it", Number: 2}, InsertOpts: unique}}); err != nil {
				return err
			}
			return tx.Commit(h.t.Context())
		}, 2},
		{"later", func(h *host) error {
			h.insert("it", 1, &river.InsertOpts{ScheduledAt: time.Now().Add(time.Hour)})
			return nil
		}, 0},
		{"pending", func(h *host) error {
			h.insert("it", 1, &river.InsertOpts{Pending: true})
			return nil
		}, 0},
		{"no key", func(h *host) error {
			_, err := h.river.Insert(h.t.Context(), bare{}, nil)
			return err
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, hostOptions{idle: true, river: river.Config{Hooks: []rivertype.Hook{&refusing{}}, SkipUnknownJobCheck: true}})
			Key(h.mutex, func(bare) string { return "" })
			if err := c.insert(h); err != nil {
				t.Fatal(err)
			}
			if n := h.waiting("it"); n != c.places {
				t.Errorf("the key has %d places, want %d", n, c.places)
			}
		})
	}
}

// bare is a kind of jobs without a key.
type bare struct{}

func (bare) Kind() string { return "bare" }

// TestLater: a job for later takes its place when it runs, and is in nobody's way
// until then. So does one that a client without the middleware has inserted.
func TestLater(t *testing.T) {
	t.Parallel()
	var l journal
	g := newGate()
	h := newHost(t, hostOptions{work: gated(&l, g), river: river.Config{FetchPollInterval: 50 * time.Millisecond}})
	later := h.insert("it", 4, &river.InsertOpts{ScheduledAt: time.Now().Add(5 * time.Second)})
	if n := readNote(later.Metadata); n.Ticket != "" || n.Key != keyOf("it") {
		t.Errorf("its note is %+v", n)
	}
	h.insert("it", 1, nil)
	l.await(t, 1)
	h.insert("it", 2, nil)
	var plain int64
	err := h.pool.QueryRow(t.Context(), `INSERT INTO river_job (args, kind, max_attempts) VALUES ('{"of": "it", "number": 3}', 'job', 1) RETURNING id`).Scan(&plain)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "all four are there", func() bool {
		return h.row(plain).Attempt+int(snoozes(h.row(plain))) > 0 && h.row(later.ID).Attempt+int(snoozes(h.row(later.ID))) > 0
	})
	close(g)
	h.await(later.ID, rivertype.JobStateCompleted)
	h.await(plain, rivertype.JobStateCompleted)
	l.check(t, 1, 2, 3, 4)
}

// TestClosed: a job whose key cannot be asked for is not inserted, and one that is
// there already comes back without having failed.
func TestClosed(t *testing.T) {
	t.Parallel()
	var l journal
	g := newGate()
	close(g)
	h := newHost(t, hostOptions{work: gated(&l, g), river: river.Config{FetchPollInterval: 50 * time.Millisecond, MaxAttempts: 1}})
	if err := h.dibs.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.river.Insert(t.Context(), job{Of: "it"}, nil); !errors.Is(err, dibs.ErrClosed) {
		t.Errorf("Insert returned %v, want dibs.ErrClosed", err)
	}
	var id int64
	if err := h.pool.QueryRow(t.Context(), `INSERT INTO river_job (args, kind, max_attempts) VALUES ('{"of": "it"}', 'job', 1) RETURNING id`).Scan(&id); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "it came back twice", func() bool { return snoozes(h.row(id)) >= 2 })
	if row := h.row(id); len(row.Errors) > 0 || row.FinalizedAt != nil {
		t.Errorf("it has the errors %v and is %s", row.Errors, row.State)
	}
	l.check(t)
}
