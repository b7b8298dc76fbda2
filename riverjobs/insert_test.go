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
		name      string
		elsewhere bool
		in        bool // the transaction has the places
	}{
		{"places in the transaction", false, true},
		{"places outside", false, false},
		{"places elsewhere", true, false},
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
			if c.elsewhere {
				o.keys = newStore(t)
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
			if n := h.waiting("it"); (n == 0) != c.in {
				t.Errorf("the key has %d places after the transaction", n)
			}
			began := time.Now()
			h.await(h.insert("it", 2, nil).ID, rivertype.JobStateCompleted)
			l.check(t, 2)
			if took := time.Since(began); !c.in && took < 900*time.Millisecond {
				t.Errorf("the place was in the way for %v; Hold is a second", took)
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
	h := newHost(t, hostOptions{idle: true, river: river.Config{Hooks: []rivertype.Hook{&refusing{}}, SkipUnknownJobCheck: true}})
	Key(h.mutex, func(bare) string { return "" })
	unique := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
	many := func(of string, o *river.InsertOpts, numbers ...int) (batch []river.InsertManyParams) {
		for _, n := range numbers {
			batch = append(batch, river.InsertManyParams{Args: job{Of: of, Number: n}, InsertOpts: o})
		}
		return batch
	}
	refused := func(err error) error {
		if err == nil {
			return errors.New("it should be refused")
		}
		return nil
	}
	for of, c := range map[string]struct {
		insert func(of string) error
		places int
	}{
		"refused": {func(of string) error {
			_, err := h.river.Insert(t.Context(), job{Of: of, Number: -1}, nil)
			return refused(err)
		}, 0},
		"one of many refused": {func(of string) error {
			_, err := h.river.InsertMany(t.Context(), many(of, nil, 0, -1))
			return refused(err)
		}, 0},
		"duplicates": {func(of string) error {
			h.insert(of, 1, unique)
			h.insert(of, 1, unique)
			_, err := h.river.InsertMany(t.Context(), many(of, unique, 1, 2))
			return err
		}, 2},
		"duplicates in a transaction": {func(of string) error {
			h.insert(of, 1, unique)
			tx, err := h.pool.Begin(t.Context())
			if err != nil {
				return err
			}
			if _, err := InsertManyTx(t.Context(), h.river, tx, many(of, unique, 1, 2)); err != nil {
				return err
			}
			return tx.Commit(t.Context())
		}, 2},
		"later": {func(of string) error {
			h.insert(of, 1, &river.InsertOpts{ScheduledAt: time.Now().Add(time.Hour)})
			return nil
		}, 0},
		"pending": {func(of string) error {
			h.insert(of, 1, &river.InsertOpts{Pending: true})
			return nil
		}, 0},
		"": {func(string) error { // no key
			_, err := h.river.Insert(t.Context(), bare{}, nil)
			return err
		}, 0},
	} {
		if err := c.insert(of); err != nil {
			t.Errorf("%s: %v", of, err)
		}
		if n := h.waiting(of); n != c.places {
			t.Errorf("%s: the key has %d places, want %d", of, n, c.places)
		}
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
	later := h.insert("it", 4, &river.InsertOpts{ScheduledAt: time.Now().Add(time.Hour)})
	if n := readNote(later.Metadata); n.Ticket != "" || n.Key != keyOf("it") {
		t.Errorf("its note is %+v", n)
	}
	h.insert("it", 1, nil)
	l.await(t, 1)
	h.insert("it", 2, nil)
	places := h.waiting("it")
	var plain int64
	err := h.pool.QueryRow(t.Context(), `INSERT INTO river_job (args, kind, max_attempts) VALUES ('{"of": "it", "number": 3}', 'job', 1) RETURNING id`).Scan(&plain)
	if err != nil {
		t.Fatal(err)
	}
	// They come in this order.
	eventually(t, "the second waits, and the third", func() bool { return h.waiting("it") == places+1 })
	if _, err := h.river.JobRetry(t.Context(), later.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all wait", func() bool { return h.waiting("it") == places+2 })
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
	eventually(t, "it came back", func() bool { return snoozes(h.row(id)) >= 1 })
	if row := h.row(id); len(row.Errors) > 0 || row.FinalizedAt != nil {
		t.Errorf("it has the errors %v and is %s", row.Errors, row.State)
	}
	l.check(t)
}
