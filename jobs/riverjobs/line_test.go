package riverjobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
)

// presence counts the workers that have a hot job: it is around the Mutex.
type presence struct {
	river.MiddlewareDefaults
	now, most atomic.Int64
}

func (p *presence) Work(ctx context.Context, row *rivertype.JobRow, doInner func(context.Context) error) error {
	if readMetadata(row.Metadata).Dibs.Key == keyOf("hot") {
		now := p.now.Add(1)
		defer p.now.Add(-1)
		for most := p.most.Load(); now > most && !p.most.CompareAndSwap(most, now); most = p.most.Load() {
		}
	}
	return doInner(ctx)
}

// fetches returns how often a worker had the job that most often had to be fetched.
func (h *host) fetches() int {
	h.t.Helper()
	return h.count("SELECT max(attempt + coalesce((metadata->>'snoozes')::int, 0)) FROM river_job")
}

// insertMany inserts jobs, perhaps with their places in the same transaction.
func (h *host) insertMany(ctx context.Context, batch []river.InsertManyParams, in bool) (rows []*rivertype.JobInsertResult, err error) {
	if !in {
		return h.river.InsertMany(ctx, batch)
	}
	err = pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
		rows, err = InsertManyTx(ctx, h.river, tx, batch)
		return err
	})
	return rows, err
}

// TestHotKey: all other jobs are done while the first of a hot key runs, and no more workers than
// Ahead have one of that key then. No job is fetched more than twice.
func TestHotKey(t *testing.T) {
	t.Parallel()
	const each, ahead = 60, 4
	for _, way := range []string{"places outside", "places in the transaction"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			var l journal
			var p presence
			gate := make(chan struct{})
			o := hostOptions{url: NewDatabase(), outer: &p, promotes: true, mutex: Options{Jobs: jobs.Options{Ahead: ahead, CrashGrace: time.Hour}}}
			o.work = func(ctx context.Context, h *host, j *river.Job[job]) error {
				if j.Args.Of == "hot" {
					return l.gated(gate)(ctx, h, j)
				}
				return nil
			}
			h := newHost(t, o)
			newHost(t, o)
			var batch []river.InsertManyParams
			for n := 1; n <= each; n++ {
				batch = append(batch, river.InsertManyParams{Args: job{Of: "hot", Number: n}}, river.InsertManyParams{Args: job{Of: fmt.Sprint("other ", n)}})
			}
			rows, err := h.insertMany(t.Context(), batch, way == "places in the transaction")
			h.must(nil, err)
			var want []int
			for i, r := range rows {
				args := batch[i].Args.(job)
				if args.Of != "hot" {
					h.await(r.Job.ID, rivertype.JobStateCompleted)
					continue
				}
				want = append(want, args.Number)
				if parked := r.Job.State == rivertype.JobStatePending; parked != (args.Number > ahead) && args.Number != ahead {
					t.Errorf("hot job %d is %s", args.Number, r.Job.State)
				}
			}
			if n := len(l.order()); n > 1 {
				t.Errorf("%d hot jobs have run before the first has ended", n)
			}
			if n := p.most.Load(); n > ahead {
				t.Errorf("%d workers had jobs of the hot key, want %d at most", n, ahead)
			}
			close(gate)
			h.await(rows[len(rows)-2].Job.ID, rivertype.JobStateCompleted)
			l.check(t, want...)
			h.checkFetches()
		})
	}
}

// TestHotKeys: where many keys are hot, and few workers may wait, all go on in their order.
func TestHotKeys(t *testing.T) {
	t.Parallel()
	const keys, each = 12, 10
	var ls [keys]journal
	h := newHost(t, hostOptions{queue: 4, mutex: Options{Jobs: jobs.Options{CrashGrace: time.Hour}}, work: func(ctx context.Context, h *host, j *river.Job[job]) error {
		key, _ := strconv.Atoi(j.Args.Of)
		return ls[key].noted()(ctx, h, j)
	}})
	var want []int
	var batch []river.InsertManyParams
	for n := range each {
		want = append(want, n)
		for key := range keys {
			batch = append(batch, river.InsertManyParams{Args: job{Of: fmt.Sprint(key), Number: n}})
		}
	}
	rows, err := h.river.InsertMany(t.Context(), batch)
	h.must(nil, err)
	for _, r := range rows {
		h.completed(r.Job)
	}
	for key := range ls {
		ls[key].check(t, want...)
	}
	h.checkFetches()
}

// TestPromote: the statement makes the first jobs of a key runnable and no others, is the same
// when it runs again, and does not end in a deadlock with itself.
func TestPromote(t *testing.T) {
	t.Parallel()
	const ahead, keys = 4, 5
	h := newHost(t, hostOptions{idle: true, unswept: true, outside: true, mutex: Options{Jobs: jobs.Options{Ahead: ahead}}})
	// How the jobs of a key are: r running, d running for an hour, a available, f failed, p parked, s parked again (by
	// its second worker), z snoozed by itself, l for later, without a ticket, c completed. Uppercase: made runnable.
	states := map[rune]string{
		'r': "state = 'running'", 'd': "state = 'running', attempted_at = now() - interval '1 hour'", 'a': "state = 'available'", 'f': "state = 'retryable', scheduled_at = now() + interval '1 hour'",
		'p': "state = 'pending'", 'c': "state = 'completed', finalized_at = now()",
		's': `state = 'scheduled', scheduled_at = now() + interval '1 hour', metadata = metadata || '{"dibs_parked": true}'`,
		'z': `state = 'scheduled', scheduled_at = now() + interval '1 hour', metadata = metadata || '{"dibs_parked": false}'`,
		'l': `state = 'scheduled', scheduled_at = now() + interval '1 hour', metadata = metadata #- '{dibs,ticket}'`,
	}
	for _, c := range []struct {
		are    string
		after  int // jobs that do not count
		want   string
		passed string // with jobs.LetPass
	}{
		{"pppppp", 0, "PPPPpp", "PPPPpp"},
		{"rpppppp", 0, "rPPPppp", "rPPPppp"},
		{"rrrrpppppp", 0, "rrrrpppppp", "rrrrpppppp"},
		{"rrrrpppppp", 3, "rrrrPPPppp", "rrrrPPPppp"},
		{"dpppp", 0, "dPPPp", "dPPPp"},
		{"ddddpppp", 0, "ddddPPPp", "ddddPPPp"}, // at most one of them runs
		{"drrrpppp", 0, "drrrpppp", "drrrpppp"},
		{"rdddpppp", 0, "rdddPPpp", "rdddPPpp"},
		{"ccraappp", 0, "ccraaPpp", "ccraaPpp"},
		{"fpppp", 0, "fPPPp", "fPPPP"},
		{"zpppp", 0, "zPPPp", "zPPPP"},
		{"ffffp", 0, "ffffp", "ffffP"},
		{"lllllp", 0, "lllllP", "lllllP"},
		{"sspp", 0, "SsPP", "SsPP"},
		{"rspp", 0, "rsPP", "rsPP"},
		{"rspp", 1, "rSPP", "rSPP"},
		{"aaaasp", 0, "aaaasp", "aaaasp"},
	} {
		for passes, want := range map[bool]string{false: c.want, true: c.passed} {
			t.Run(fmt.Sprint(c.are, " ", c.after, " ", passes), func(t *testing.T) {
				of := t.Name()
				var ids []int64
				for n, state := range c.are {
					row := h.insert(of, n, nil)
					h.exec("UPDATE river_job SET "+states[state]+" WHERE id = $1", row.ID)
					ids = append(ids, row.ID)
				}
				h.mutex.keeps = !passes
				for range 2 { // again, it does nothing
					h.must(h.mutex.promote(t.Context(), h.pool, []string{keyOf(of)}, []int64{ids[0] + int64(c.after) - 1}, nil))
					for n, id := range ids {
						row, was := h.row(id), rune(c.are[n])
						promoted := rune(want[n]) != was
						if now := row.State == rivertype.JobStateAvailable && was != 'a'; now != promoted {
							t.Errorf("job %d is %s; want %s", n, row.State, want)
						}
						if promoted && row.ScheduledAt.After(row.CreatedAt) {
							t.Errorf("job %d stands behind those that came after it", n)
						}
					}
				}
			})
		}
	}
	t.Run("at once", func(t *testing.T) {
		var names []string
		for key := range keys {
			names = append(names, keyOf(fmt.Sprint(key)))
			for n := range 20 {
				h.insert(fmt.Sprint(key), n, nil)
			}
		}
		var wg sync.WaitGroup
		for i := range 4 {
			mine := slices.Clone(names)
			if i%2 == 1 {
				slices.Reverse(mine)
			}
			wg.Go(func() {
				for after := range int64(20) {
					if _, err := h.mutex.promote(t.Context(), h.pool, mine, slices.Repeat([]int64{after * 10}, keys), nil); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	})
}

// TestSweep: what a crash or two inserts at once have left is made runnable; keys of kinds that the
// Mutex does not know are left alone.
func TestSweep(t *testing.T) {
	t.Parallel()
	h := newHost(t, hostOptions{idle: true, unswept: true})
	other := newHost(t, hostOptions{url: h.url, idle: true, unswept: true, untagged: true})
	Key(other.mutex, func(renamed) string { return "" })
	row := h.insert("it", 1, nil)
	h.exec("UPDATE river_job SET state = 'pending' WHERE id = $1", row.ID)
	h.must(nil, other.mutex.sweep(t.Context()))
	before := h.row(row.ID).State
	h.must(nil, h.mutex.sweep(t.Context()))
	if after := h.row(row.ID).State; before != rivertype.JobStatePending || after != rivertype.JobStateAvailable {
		t.Errorf("it is %s, and then %s", before, after)
	}
}

// TestSchema: River's tables may be in a schema, and the index is made once.
func TestSchema(t *testing.T) {
	t.Parallel()
	before := newHost(t, hostOptions{idle: true, unswept: true})
	before.exec(`DROP TABLE river_job CASCADE; CREATE SCHEMA "Own"`)
	before.must(nil, migrateRiver(t.Context(), before.pool, "Own"))
	for range 2 {
		before.must(nil, Migrate(t.Context(), before.pool, "Own"))
	}
	var l journal
	h := newHost(t, hostOptions{
		url: before.url, mutex: Options{Jobs: jobs.Options{Ahead: 1}}, river: river.Config{Schema: "Own", FetchPollInterval: time.Hour},
		work: func(ctx context.Context, h *host, j *river.Job[job]) error {
			return l.run(j.Args.Number, func() error {
				return Commit(ctx, j, func(context.Context, pgx.Tx) error { return nil })
			})
		},
	})
	rows, err := h.river.InsertMany(t.Context(), many("it", 3, nil))
	h.must(nil, err)
	h.await(rows[2].Job.ID, rivertype.JobStateCompleted)
	l.check(t, 1, 2, 3)
}

// TestSweepNeedsNoJob: all runnable jobs of a key are deleted or cancelled before a worker starts.
// The parked jobs run, although no job comes to a worker.
func TestSweepNeedsNoJob(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(h *host, id int64) error{
		"deleted":   func(h *host, id int64) error { _, err := h.river.JobDelete(t.Context(), id); return err },
		"cancelled": func(h *host, id int64) error { _, err := h.river.JobCancel(t.Context(), id); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := Options{Jobs: jobs.Options{Ahead: 3, Grace: 100 * time.Millisecond}}
			h := newHost(t, hostOptions{idle: true, unswept: true, outside: true, mutex: options})
			rows := h.inserts("it", 1, 8)
			for _, row := range rows[:3] {
				h.must(nil, remove(h, row.ID))
			}
			newHost(t, hostOptions{url: h.url, outside: true, mutex: options})
			for _, row := range rows[3:] {
				h.await(row.ID, rivertype.JobStateCompleted)
			}
		})
	}
}

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
