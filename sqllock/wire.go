package sqllock

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// wire is one session of the server, on a connection of its own, with any number of
// locks. What is asked while a question is under way makes the next one; while nothing
// is, it listens, and hears at once when the session ends.
type wire struct {
	conn      *pgx.Conn
	heartbeat time.Duration

	mu      sync.Mutex
	pending []*ask
	kick    context.CancelFunc // ends the listening
	locks   map[*Lock]func()   // who has a lock here, and what follows when it is lost
	why     error              // the session has ended
	ended   chan struct{}

	life context.Context // questions end with it
	cut  context.CancelCauseFunc
}

// op is what is asked of the server; one about a pair is pairs higher.
type op int16

const (
	opTry op = iota
	opTryShared
	opUnlock
	opUnlockShared
	pairs
	opWait op = -1 // alone on its wire
	opHeld op = -2
)

// batchSQL does what is asked, in this order. How a pair is packed see AdvisoryKey.
const batchSQL = `SELECT CASE op
WHEN 0 THEN pg_try_advisory_lock(k)
WHEN 1 THEN pg_try_advisory_lock_shared(k)
WHEN 2 THEN pg_advisory_unlock(k)
WHEN 3 THEN pg_advisory_unlock_shared(k)
WHEN 4 THEN pg_try_advisory_lock((k >> 32)::int, ((k << 32) >> 32)::int)
WHEN 5 THEN pg_try_advisory_lock_shared((k >> 32)::int, ((k << 32) >> 32)::int)
WHEN 6 THEN pg_advisory_unlock((k >> 32)::int, ((k << 32) >> 32)::int)
WHEN 7 THEN pg_advisory_unlock_shared((k >> 32)::int, ((k << 32) >> 32)::int)
END FROM unnest($1::int2[], $2::int8[]) AS asked(op, k)`

// mineSQL lists the advisory locks that the session has.
const mineSQL = `SELECT classid::bigint, objid::bigint, objsubid::int FROM pg_locks
WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()`

// maxBatch bounds one question.
const maxBatch = 512

// ask is one thing that is asked of the server.
type ask struct {
	op     op
	key    AdvisoryKey
	taking *taking     // of opWait
	answer chan answer // buffered
}

type answer struct {
	ok  bool
	err error // with it, nothing is held and nothing was given up
}

// newWire returns a wire on a connection that is to be its own. It is to be run.
func newWire(conn *pgx.Conn, heartbeat time.Duration) *wire {
	w := &wire{conn: conn, heartbeat: heartbeat, locks: map[*Lock]func(){}, ended: make(chan struct{})}
	w.life, w.cut = context.WithCancelCause(context.Background())
	return w
}

// do asks, and waits for the answer, which comes within twice answerLimit.
func (w *wire) do(op op, key AdvisoryKey) answer { return <-w.ask(&ask{op: op, key: key}) }

// ask asks. There always is an answer.
func (w *wire) ask(a *ask) <-chan answer {
	a.answer = make(chan answer, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.why != nil {
		a.answer <- answer{err: w.why}
		return a.answer
	}
	w.pending = append(w.pending, a)
	if w.kick != nil {
		w.kick()
		w.kick = nil
	}
	return a.answer
}

// add adds a lock that the session has, unless it has ended.
func (w *wire) add(l *Lock, lost func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.why != nil {
		return false
	}
	w.locks[l] = lost
	return true
}

// remove removes a lock that is given up.
func (w *wire) remove(l *Lock) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.locks, l)
}

// cause returns why the session has ended; nil if it has not.
func (w *wire) cause() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.why
}

// run asks and listens until the session ends.
func (w *wire) run() {
	for {
		batch, listening, stop := w.next()
		var err error
		if len(batch) > 0 {
			err = w.carry(batch)
		} else {
			err = w.listen(listening)
			stop()
		}
		if cause := context.Cause(w.life); cause != nil {
			err = cause
		}
		if err != nil {
			w.end(err)
			return
		}
	}
}

// next returns what is to be asked, or if there is nothing the context to listen with.
func (w *wire) next() ([]*ask, context.Context, context.CancelFunc) {
	w.mu.Lock()
	if len(w.pending) == 0 {
		// Those who just got their answers may have more to ask: listening is not free.
		w.mu.Unlock()
		runtime.Gosched()
		w.mu.Lock()
	}
	defer w.mu.Unlock()
	if len(w.pending) == 0 {
		listening, stop := context.WithTimeout(w.life, w.heartbeat)
		w.kick = stop
		return nil, listening, stop
	}
	n := 1
	if w.pending[0].op >= 0 {
		for n < min(len(w.pending), maxBatch) && w.pending[n].op >= 0 {
			n++
		}
	}
	batch := w.pending[:n:n]
	w.pending = w.pending[n:]
	if len(w.pending) == 0 {
		w.pending = nil
	}
	return batch, nil, nil
}

// listen listens until there is something to ask. When nothing is heard for long it
// asks whether somebody is there.
func (w *wire) listen(ctx context.Context) error {
	if err := listen(ctx, w.conn); err != nil {
		return err
	}
	w.mu.Lock()
	w.kick = nil
	w.mu.Unlock()
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return nil
	}
	asking, cancel := context.WithTimeout(w.life, answerLimit)
	defer cancel()
	return w.conn.Ping(asking)
}

// carry asks. It returns why the session is not to be used any more.
func (w *wire) carry(batch []*ask) error {
	var err error
	switch a := batch[0]; a.op {
	case opWait:
		err = w.wait(a)
	case opHeld:
		class, object, sub := a.key.inLocks()
		var held bool
		err = w.query(heldSQL, []any{class, object, sub}, &held)
		a.answer <- answer{ok: held, err: err}
	default:
		var done int
		if done, err = w.carryAll(batch); err != nil {
			if server, ok := errors.AsType[*pgconn.PgError](err); ok && !w.conn.IsClosed() {
				err = w.recover(batch, server)
				done = len(batch)
			}
			for _, a := range batch[done:] {
				a.answer <- answer{err: err}
			}
		}
	}
	if w.conn.IsClosed() {
		return err
	}
	if _, ok := errors.AsType[*pgconn.PgError](err); ok {
		return nil // the server refused, and goes on
	}
	return err
}

// carryAll asks a batch, and returns how many were answered.
func (w *wire) carryAll(batch []*ask) (int, error) {
	ops, keys := make([]int16, len(batch)), make([]int64, len(batch))
	for i, a := range batch {
		ops[i], keys[i] = int16(a.op), a.key.bits
		if a.key.pair {
			ops[i] += int16(pairs)
		}
	}
	ctx, cancel := context.WithTimeout(w.life, answerLimit)
	defer cancel()
	rows, err := w.conn.Query(ctx, batchSQL, ops, keys)
	if err != nil {
		return 0, err
	}
	got := make([]bool, 0, len(batch))
	for rows.Next() {
		var ok bool
		if err := rows.Scan(&ok); err != nil {
			break
		}
		got = append(got, ok)
	}
	rows.Close()
	// Only now: an error after some rows does not undo what they did.
	if err := rows.Err(); err != nil {
		return 0, err
	}
	for i, ok := range got {
		batch[i].answer <- answer{ok: ok}
	}
	return len(got), nil
}

// recover finds out what became of a batch that the server gave up in the middle, when
// its memory for locks was full: what was done before that was done. It answers all.
func (w *wire) recover(batch []*ask, refused error) error {
	has, err := w.mine()
	if err != nil {
		for _, a := range batch {
			a.answer <- answer{err: err}
		}
		return err
	}
	for _, a := range batch {
		switch {
		case a.op == opTry || a.op == opTryShared:
			if has[a.key] {
				a.answer <- answer{ok: true}
			} else {
				a.answer <- answer{err: refused}
			}
		case !has[a.key]:
			a.answer <- answer{ok: true}
		default:
			if n, err := w.carryAll([]*ask{a}); n == 0 {
				err = fmt.Errorf("giving a lock up: %w", errors.Join(errStuck, err))
				a.answer <- answer{err: err}
				w.cut(err)
			}
		}
	}
	return nil
}

// mine returns which locks the session has.
func (w *wire) mine() (map[AdvisoryKey]bool, error) {
	ctx, cancel := context.WithTimeout(w.life, answerLimit)
	defer cancel()
	rows, err := w.conn.Query(ctx, mineSQL)
	if err != nil {
		return nil, err
	}
	has := map[AdvisoryKey]bool{}
	var class, object int64
	var sub int
	_, err = pgx.ForEachRow(rows, []any{&class, &object, &sub}, func() error {
		has[AdvisoryKey{bits: class<<32 | object, pair: sub == 2}] = true
		return nil
	})
	return has, err
}

// wait waits for a lock. The wire has nothing else then.
func (w *wire) wait(a *ask) error {
	args, params := a.key.args()
	query := fmt.Sprintf("SELECT CASE WHEN set_config('lock_timeout', $%d, true) IS NOT NULL THEN ", len(params)+1) +
		function("pg_advisory_lock", a.taking.shared) + "(" + args + ")::text END"
	for {
		slice, more := a.taking.left(waitSlice)
		if !more { // it was tried before
			a.answer <- answer{}
			return nil
		}
		ctx, cancel := context.WithTimeout(w.life, slice+answerLimit)
		var void string
		err := w.conn.QueryRow(ctx, query, append(params[:len(params):len(params)], lockTimeout(slice))...).Scan(&void)
		cancel()
		if err == nil {
			a.answer <- answer{ok: true}
			return nil
		}
		timeout := sqlState(err) == "55P03"
		// A lock that is granted in the moment in which the wait is given up stays.
		if undo := w.query("SELECT pg_advisory_unlock_all()::text", nil, &void); undo != nil {
			a.answer <- answer{err: err}
			return fmt.Errorf("after %w: %w", err, undo)
		}
		if !timeout {
			a.answer <- answer{err: err}
			return err
		}
	}
}

// query asks for one value.
func (w *wire) query(sql string, args []any, into any) error {
	ctx, cancel := context.WithTimeout(w.life, answerLimit)
	defer cancel()
	return w.conn.QueryRow(ctx, sql, args...).Scan(into)
}

// end ends the session, whose locks are lost.
func (w *wire) end(why error) {
	w.mu.Lock()
	w.why = why
	pending, locks := w.pending, w.locks
	w.pending, w.locks, w.kick = nil, nil, nil
	w.mu.Unlock()
	w.cut(why)
	// All contexts end before anybody else in this process gets one of the locks.
	for l := range locks {
		l.lose(why)
	}
	closing, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	_ = w.conn.Close(closing)
	for _, a := range pending {
		a.answer <- answer{err: why}
	}
	for _, lost := range locks {
		lost()
	}
	close(w.ended)
	select { // what a question that was interrupted leaves to be cleared up
	case <-w.conn.PgConn().CleanupDone():
	case <-closing.Done():
	}
}

var errStuck = errors.New("the server does not let go of it")
