package riverjobs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
)

// many is n jobs of something.
func many(of string, n int, o *river.InsertOpts) (batch []river.InsertManyParams) {
	for i := range n {
		batch = append(batch, river.InsertManyParams{Args: job{Of: of, Number: i + 1}, InsertOpts: o})
	}
	return batch
}

// refusing is a hook that refuses jobs.
type refusing struct{ river.HookDefaults }

func (*refusing) InsertBegin(_ context.Context, p *rivertype.JobInsertParams) error {
	if j, ok := p.Args.(job); ok && j.Number < 0 {
		return errors.New("refused")
	}
	return nil
}

// TestInsert: for each way to insert jobs, how many places are taken, and how many jobs are
// runnable or parked afterwards. A job that is not inserted gives its place back.
func TestInsert(t *testing.T) {
	t.Parallel()
	h := newHost(t, hostOptions{idle: true, unswept: true, mutex: Options{Jobs: jobs.Options{Ahead: 3}}, river: river.Config{Hooks: []rivertype.Hook{&refusing{}}}})
	unique := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
	bad := []river.InsertManyParams{{Args: job{Of: "refused"}}, {Args: job{Of: "refused", Number: -1}}}
	in := func(fn func(ctx context.Context, tx pgx.Tx) error) error {
		return pgx.BeginFunc(t.Context(), h.pool, func(tx pgx.Tx) error { return fn(t.Context(), tx) })
	}
	refused := func(err error) error {
		if err == nil {
			return errors.New("it should be refused")
		}
		return nil
	}
	for of, c := range map[string]struct {
		insert                   func(of string) error
		places, runnable, parked int
	}{
		"refused":    {func(string) error { _, err := h.river.InsertMany(t.Context(), bad); return refused(err) }, 0, 0, 0},
		"many":       {func(of string) error { _, err := h.river.InsertMany(t.Context(), many(of, 5, nil)); return err }, 5, 2, 3},
		"many, fast": {func(of string) error { _, err := h.river.InsertManyFast(t.Context(), many(of, 5, nil)); return err }, 5, 2, 3},
		"in a transaction": {func(of string) error {
			return in(func(ctx context.Context, tx pgx.Tx) error {
				for n := range 4 {
					r, err := InsertTx(ctx, h.river, tx, job{Of: of, Number: n}, nil)
					if err != nil {
						return err
					}
					if parked := r.Job.State == rivertype.JobStatePending; parked != (n > 2) {
						t.Errorf("job %d is %s", n, r.Job.State)
					}
				}
				_, err := h.river.InsertManyFastTx(In(ctx, tx), tx, many(of, 2, nil))
				if n := h.waiting(of); n > 0 {
					t.Errorf("there are %d places before the commit", n)
				}
				return err
			})
		}, 6, 3, 3},
		"rolled back": {func(of string) error {
			return refused(in(func(ctx context.Context, tx pgx.Tx) error {
				_, err := InsertManyTx(ctx, h.river, tx, many(of, 5, nil))
				return errors.Join(err, errors.New("no"))
			}))
		}, 0, 0, 0},
		"duplicates": {func(of string) error {
			h.insert(of, 1, unique)
			h.insert(of, 1, unique)
			_, err := h.river.InsertMany(t.Context(), many(of, 2, unique))
			return err
		}, 2, 1, 1}, // its place was taken behind that of the duplicate
		"duplicates in a transaction": {func(of string) error {
			h.insert(of, 1, unique)
			return in(func(ctx context.Context, tx pgx.Tx) error {
				_, err := InsertManyTx(ctx, h.river, tx, many(of, 2, unique))
				return err
			})
		}, 2, 2, 0},
		"later": {func(of string) error {
			h.insert(of, 1, &river.InsertOpts{ScheduledAt: time.Now().Add(time.Hour)})
			return nil
		}, 0, 0, 0},
		"pending": {func(of string) error {
			h.insert(of, 1, &river.InsertOpts{Pending: true})
			return h.mutex.sweep(t.Context())
		}, 0, 0, 1},
	} {
		if err := c.insert(of); err != nil {
			t.Errorf("%s: %v", of, err)
		}
		var runnable, parked int
		err := h.pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE state = 'available'), count(*) FILTER (WHERE state = 'pending')
			FROM river_job WHERE args->>'of' = $1`, of).Scan(&runnable, &parked)
		if n := h.waiting(of); err != nil || n != c.places || runnable != c.runnable || parked != c.parked {
			t.Errorf("%s: %d places, %d runnable, %d parked, %v; want %d, %d and %d", of, n, runnable, parked, err, c.places, c.runnable, c.parked)
		}
	}
}

// TestClosed: a job whose key cannot be asked for is not inserted, and one that is there already
// comes back without having failed.
func TestClosed(t *testing.T) {
	t.Parallel()
	var l journal
	h := newHost(t, hostOptions{work: l.noted(), river: river.Config{FetchPollInterval: 50 * time.Millisecond}})
	h.must(nil, h.dibs.Close())
	if _, err := h.river.Insert(t.Context(), job{Of: "it"}, nil); !errors.Is(err, dibs.ErrClosed) {
		t.Errorf("Insert returned %v, want dibs.ErrClosed", err)
	}
	h.exec(insertSQL, 1)
	testkit.Eventually(t, "it came back", func() bool { return h.fetches() > 1 })
	if h.count("SELECT count(*) FROM river_job WHERE errors IS NOT NULL OR finalized_at IS NOT NULL") > 0 {
		t.Error("it has failed")
	}
	l.check(t)
}
