package sqlitestore

import (
	"context"
	"math"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/stores/sqlitestore/internal/lite"
)

const (
	// pruneRows bounds what one transaction prunes, so that it hardly delays the calls
	// that share it.
	pruneRows = 32
	// prunePause is the pause after a step. A step writes about as many pages as rows,
	// and SQLite moves a thousand pages at a time from its log into the file. With this
	// pause, that delays fewer than one in a hundred calls.
	prunePause = 5 * time.Millisecond
	// vacuumSQL gives pages back to the filesystem, up to 64 in a step.
	vacuumSQL = "PRAGMA incremental_vacuum(64)"
	// scanEvery is the pause between background scans of all keys with leases and
	// places, because those are not sorted by their end.
	scanEvery = 10 * time.Minute
	// spare is how many free pages a file keeps.
	spare = 256
)

// Prune implements store.Pruner. It works in small steps, in transactions that it shares
// with calls. At the end it gives free space back to the filesystem.
func (s *Store) Prune(ctx context.Context, limit int) (int, error) {
	p := &pruning{left: limit}
	if limit <= 0 {
		p.left = math.MaxInt
	}
	for p.left > 0 && !p.done {
		if err := s.pruneStep(ctx, p); err != nil {
			return p.removed, err
		}
	}
	return p.removed, nil
}

// pruneLoop prunes in the background.
func (s *Store) pruneLoop() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	timer := time.NewTimer(s.opt.PruneEvery)
	defer timer.Stop()
	var p pruning
	var scanned time.Time
	for {
		select {
		case <-timer.C:
		case <-s.closing:
			return
		}
		if p.done || p.left == 0 {
			p = pruning{left: math.MaxInt, forget: p.lastWake}
			if time.Since(scanned) < scanEvery {
				p.keys = true
			} else {
				scanned = time.Now()
			}
		}
		// Calls report faults of the file.
		err := s.pruneStep(ctx, &p)
		if err != nil || p.done {
			timer.Reset(s.opt.PruneEvery)
		} else {
			timer.Reset(prunePause)
		}
	}
}

// pruning is one pass through the file.
type pruning struct {
	left    int // how many rows may still be removed
	removed int
	done    bool

	records bool   // all records are checked
	keys    bool   // all keys are checked
	after   []byte // the last key checked

	forget   int64 // wakes up to this one may be deleted
	lastWake int64
}

// pruneStep makes one step. The step counts only when it is durable.
func (s *Store) pruneStep(ctx context.Context, p *pruning) error {
	var next pruning
	err := s.work(ctx, func(tx *transaction) {
		next = *p
		switch rows := min(pruneRows, p.left); {
		case !next.records:
			n := tx.change("deleteEnded", (tx.now+1)<<recordShift-1, int64(rows))
			next.records = n < rows
			next.count(n)
		case !next.keys:
			tx.pruneKeys(&next, rows)
		default:
			tx.pruneWakes(&next)
			tx.vacuum(&next)
		}
	})
	if err == nil {
		*p = next
	}
	return err
}

func (p *pruning) count(n int) {
	p.removed += n
	p.left -= n
}

// pruneKeys advances some keys, and removes their places that have ended, wherever they
// are in the queue.
func (tx *transaction) pruneKeys(p *pruning, rows int) {
	keys := tx.nextKeys("keys", p.after, []byte{255}, rows)
	p.keys = len(keys) < rows
	for _, k := range keys {
		tx.k, tx.asker = append(tx.k[:0], k...), store.Token{}
		n := tx.change("deleteEndedPlaces", tx.k, tx.now, int64(rows))
		if rows -= n; rows > 0 {
			p.after = k
			forgot := 0
			tx.decide(false, func(st *engine.State) { forgot = st.Forgot() })
			n, rows = n+forgot, rows-forgot
		}
		if p.count(n); rows == 0 { // the key may have more
			p.keys = false
			return
		}
	}
}

// pruneWakes deletes the wakes of the last pass. The newest one stays, so that the next
// number is higher.
func (tx *transaction) pruneWakes(p *pruning) {
	tx.get("lastWake", func(row *lite.Stmt) { p.lastWake = row.Int(0) })
	if p.forget != 0 {
		tx.change("forgetWakes", min(p.forget, p.lastWake-1))
		p.forget = 0
	}
}

// vacuum gives free pages back, except in a shared file.
func (tx *transaction) vacuum(p *pruning) {
	p.done = true
	if tx.s.opt.Shared || tx.err != nil {
		return
	}
	free, err := tx.s.conn.Query("PRAGMA freelist_count")
	if err == nil && free > spare {
		p.done, tx.dirty = false, true
		_, err = tx.s.conn.Query(vacuumSQL)
	}
	tx.err = err
}
