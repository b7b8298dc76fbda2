package riverjobs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/pgstore"
)

// Where children stop, and are killed. A worker stops in its first job, or in the one
// that the point names.
const (
	fetched       = "fetched"         // the turn was not asked for
	working       = "working"         // nothing was done
	inTransaction = "in transaction"  // the effect is in a transaction
	beforeCommit  = "before COMMIT"   // so is all the rest
	afterCommit   = "after COMMIT"    // the worker does not know
	effected      = "effected"        // the effect is there, without a transaction
	returned      = "returned"        // River has not stored the job's result
	parked        = "parked"          // River has not stored that
	waiting       = "waiting"         // the turn of the job has not come
	placed        = "placed"          // the job has a place, and is not inserted
	beforeInsert  = "before a COMMIT" // the job and its place are in a transaction
)

// outerPoints are around the Mutex.
type outerPoints struct{ river.MiddlewareDefaults }

func (*outerPoints) Work(ctx context.Context, row *rivertype.JobRow, doInner func(context.Context) error) error {
	if bytes.Contains(row.EncodedArgs, []byte(`"number": 1}`)) {
		failpoint.Reach(fetched)
	}
	err := doInner(ctx)
	if _, snoozed := errors.AsType[*rivertype.JobSnoozeError](err); snoozed {
		failpoint.Reach(parked)
	}
	if err == nil {
		failpoint.Reach(returned)
	}
	return err
}

// innerPoints are behind the Mutex.
type innerPoints struct{ river.MiddlewareDefaults }

func (*innerPoints) InsertMany(ctx context.Context, _ []*rivertype.JobInsertParams, doInner func(context.Context) ([]*rivertype.JobInsertResult, error)) ([]*rivertype.JobInsertResult, error) {
	failpoint.Reach(placed)
	return doInner(ctx)
}

// reaching is a store that stops when a job waits in a worker.
type reaching struct{ *pgstore.Store }

func (r *reaching) Claim(ctx context.Context, claims []store.Claim, answers []store.Answer) error {
	err := r.Store.Claim(ctx, claims, answers)
	for i, a := range answers {
		if claims[i].Mode == store.Queue && a.State == store.Held {
			failpoint.Reach(waiting)
		}
	}
	return err
}

// stopping makes transactions that stop around their COMMIT.
type stopping struct{ dibs.Transactor }

func (s stopping) Begin(ctx context.Context) (dibs.Transaction, error) {
	tx, err := s.Transactor.Begin(ctx)
	return &stoppingTransaction{tx}, err
}

type stoppingTransaction struct{ dibs.Transaction }

func (s *stoppingTransaction) Commit(ctx context.Context, settlement store.Settlement) error {
	failpoint.Reach(beforeCommit)
	err := s.Transaction.Commit(ctx, settlement)
	failpoint.Reach(afterCommit)
	return err
}

// stoppingTx is pgstore.Tx for those.
func stoppingTx(ctx context.Context) (pgx.Tx, bool) {
	s, ok := store.TransactionFrom(ctx).(*stoppingTransaction)
	if !ok {
		return nil, false
	}
	return pgstore.Tx(store.WithTransaction(ctx, s.Transaction))
}

// workFirst stops all jobs but the first.
func workFirst(ctx context.Context, j *river.Job[job]) error {
	if j.Args.Number == 1 {
		failpoint.Reach(working)
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// workCommit is a job whose effect is committed with it.
func workCommit(ctx context.Context, _ *host, j *river.Job[job]) error {
	if err := workFirst(ctx, j); err != nil {
		return err
	}
	err := Commit(ctx, j, func(ctx context.Context, tx pgx.Tx) error {
		err := effect(ctx, tx, j)
		failpoint.Reach(inTransaction)
		return err
	})
	failpoint.Reach(afterCommit)
	return err
}

// workPlain is a job whose effect is not in a transaction.
func workPlain(ctx context.Context, h *host, j *river.Job[job]) error {
	if err := workFirst(ctx, j); err != nil {
		return err
	}
	err := effect(ctx, h.pool, j)
	failpoint.Reach(effected)
	return err
}

// effect writes down that a job was done.
func effect(ctx context.Context, by interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, j *river.Job[job]) error {
	_, err := by.Exec(ctx, "INSERT INTO effect (key, number) VALUES ($1, $2)", j.Args.Of, j.Args.Number)
	return err
}

// effects returns the numbers of the jobs that were, in order.
func (h *host) effects(of string) []int {
	h.t.Helper()
	rows, _ := h.pool.Query(h.t.Context(), "SELECT number FROM effect WHERE key = $1 ORDER BY seq", of)
	numbers, err := pgx.CollectRows(rows, pgx.RowTo[int])
	h.must(nil, err)
	return numbers
}

// TestKilledWorker: wherever a worker is killed, its job and those behind it run in their order
// afterwards; once each, if they commit. Most of them were parked, and the process that dies has
// made none of them runnable.
func TestKilledWorker(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		work, point string
		outside     bool          // the key is not in the transaction
		crashGrace  time.Duration // how long the others wait for a job whose worker died
		behind      bool          // job 1 comes again after others
	}{
		{"commit", fetched, false, time.Hour, false},
		{"commit", working, false, time.Hour, false},
		{"commit", inTransaction, false, time.Hour, false},
		{"commit", beforeCommit, false, time.Hour, false},
		{"commit", afterCommit, false, time.Hour, false},
		{"commit", afterCommit, true, 500 * time.Millisecond, false}, // the job is done, but its key is not given up
		{"commit", returned, false, time.Hour, false},
		{"stuck", parked, false, time.Hour, false},
		{"plain", effected, false, time.Hour, false},
		{"plain", returned, false, time.Hour, true}, // River alone would run it again, too
	} {
		t.Run(fmt.Sprint(c.work, " ", c.point, " ", c.outside), func(t *testing.T) {
			t.Parallel()
			options := Options{Jobs: jobs.Options{Ahead: 4, CrashGrace: c.crashGrace, Grace: c.crashGrace}}
			h := newHost(t, hostOptions{url: NewDatabase(), idle: true, unswept: true, mutex: options})
			rows := h.inserts("it", 1, 6)
			child := startChild(t, c.point, childConfig{
				ID: "child", URL: h.url, Work: c.work, Outside: c.outside, Workers: 3, Unswept: true, Ahead: 4, TTL: time.Hour,
				CrashGrace: c.crashGrace, Patience: DefaultPatience, Timeout: time.Hour,
			})
			child.Await()
			if c.point == parked { // perhaps before the first began
				testkit.Eventually(t, "the first has had its effect", func() bool { return len(h.effects("it")) == 1 })
			}
			child.Kill()
			h.endChild()
			newHost(t, hostOptions{
				url: h.url, commits: !c.outside, mutex: options,
				work: func(ctx context.Context, h *host, j *river.Job[job]) error {
					if c.work == "commit" {
						return Commit(ctx, j, func(ctx context.Context, tx pgx.Tx) error { return effect(ctx, tx, j) })
					}
					return effect(ctx, h.pool, j)
				},
			})
			for _, row := range rows {
				h.await(row.ID, rivertype.JobStateCompleted)
			}
			got := h.effects("it")
			if c.work != "commit" { // job 1 has its effect twice
				if at := slices.Index(got[1:], 1) + 1; at == 1 || at > 1 && c.behind {
					got = slices.Delete(got, at, at+1)
				}
			}
			if c.crashGrace < time.Hour { // a slow machine may take longer than Grace, after which others may pass
				slices.Sort(got)
			}
			if want := []int{1, 2, 3, 4, 5, 6}; !slices.Equal(got, want) {
				t.Errorf("the effects are %v, want %v", got, want)
			}
			if n := h.waiting("it"); n != 0 {
				t.Errorf("%d places are left", n)
			}
		})
	}
}

// TestKilledWhileItWaits: a worker that is killed while its job waits for its turn blocks the key
// for Grace, and not for CrashGrace. That is so even if the grant was sent to it after its death.
// The job comes again when River has rescued it.
func TestKilledWhileItWaits(t *testing.T) {
	t.Parallel()
	options := Options{Jobs: jobs.Options{Grace: 300 * time.Millisecond, CrashGrace: time.Hour}}
	h := newHost(t, hostOptions{idle: true, mutex: options})
	lease, err := h.dibs.Acquire(t.Context(), keyOf("it"), nil)
	h.must(nil, err)
	first := h.insert("it", 1, nil)
	child := startChild(t, waiting, childConfig{
		ID: "child", URL: h.url, Work: "plain", Workers: 3, TTL: time.Hour,
		Grace: options.Jobs.Grace, CrashGrace: options.Jobs.CrashGrace, Patience: DefaultPatience, Timeout: time.Hour,
	})
	child.Await()
	child.Kill()
	h.must(nil, lease.Release())
	var l journal
	newHost(t, hostOptions{url: h.url, mutex: options, work: l.noted()})
	h.await(h.insert("it", 2, nil).ID, rivertype.JobStateCompleted)
	h.rescue("child")
	h.await(first.ID, rivertype.JobStateCompleted)
	l.check(t, 2, 1)
}

// endChild does at once what otherwise takes long after a child's death: the server notices it,
// the lease of its key ends, and River gives its jobs to others.
func (h *host) endChild() {
	h.t.Helper()
	h.rescue("child")
	h.exec("UPDATE dibs_key SET ends = since + 1 WHERE ends > since")
}

// rescue gives the jobs of a dead child to others, when the server has noticed its death.
func (h *host) rescue(child string) {
	h.t.Helper()
	testkit.Eventually(h.t, "the server has noticed the child's death", func() bool {
		return h.count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1", child) == 0
	})
	h.exec(`UPDATE river_job SET state = 'available', scheduled_at = now()
		WHERE state = 'running' AND attempted_by[array_upper(attempted_by, 1)] = $1`, child)
}

// inserts are how children insert a job.
var inserts = map[string]func(context.Context, *host) error{
	"in a transaction": func(ctx context.Context, h *host) error {
		return pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
			_, err := InsertTx(ctx, h.river, tx, job{Of: "it", Number: 1}, nil)
			failpoint.Reach(beforeInsert)
			return err
		})
	},
	"alone": func(ctx context.Context, h *host) error {
		_, err := h.river.Insert(ctx, job{Of: "it", Number: 1}, nil)
		return err
	},
}

// TestKilledInserter: a process that is killed before its job is there leaves no place, or a
// place that blocks for no longer than Grace. A job that was parked because of that place runs.
func TestKilledInserter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		insert, point string
		grace         time.Duration
		left          int // places
	}{
		{"in a transaction", beforeInsert, time.Hour, 0},
		{"alone", placed, 500 * time.Millisecond, 1},
	} {
		t.Run(c.insert, func(t *testing.T) {
			t.Parallel()
			var l journal
			h := newHost(t, hostOptions{
				mutex: Options{Jobs: jobs.Options{Ahead: 1, Grace: c.grace}}, outside: true, work: l.noted(),
			})
			child := startChild(t, c.point, childConfig{
				ID: "child", URL: h.url, Insert: c.insert, TTL: time.Hour, CrashGrace: c.grace, Patience: DefaultPatience,
			})
			child.Await()
			child.Kill()
			h.endChild()
			if n := h.waiting("it"); n != c.left {
				t.Errorf("%d places are left, want %d", n, c.left)
			}
			h.await(h.insert("it", 2, nil).ID, rivertype.JobStateCompleted)
			l.check(t, 2)
		})
	}
}

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
