package sqlitestore

import (
	"context"
	"math"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/sqlitestore/internal/lite"
)

const (
	// pruneRows bounds what one transaction prunes besides the calls that it runs, so
	// that these hardly notice.
	pruneRows = 32
	// prunePause is how long pruning leaves the file alone after a step. Each step
	// writes about as many pages as rows, which SQLite moves from its log into
	// the file a thousand at a time; with this pause that is a matter of fewer
	// than one in a hundred calls.
	prunePause = 5 * time.Millisecond
	// vacuumPages is how many pages are given back to the filesystem in a step.
	vacuumSQL = "PRAGMA incremental_vacuum(64)"
	// scanEvery is how often the keys with leases and places, which are not in the
	// order in which they end, are walked through in the background.
	scanEvery = 10 * time.Minute
	// spare is how many free pages a file keeps for what comes next.
	spare = 256
)

// Prune implements dibs.Pruner. It works in small steps, each in a transaction
// that it shares with the calls made meanwhile. When all is removed it gives the
// space back to the filesystem, which it does not count.
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

// prunes removes what has ended, in the background.
func (s *Store) prunes() {
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
		// What is wrong with the file is told to those who make calls.
		err := s.pruneStep(ctx, &p)
		if err != nil || p.done {
			timer.Reset(s.opt.PruneEvery)
		} else {
			timer.Reset(prunePause)
		}
	}
}

// pruning is one walk through the file.
type pruning struct {
	left    int // how many more may be removed
	removed int
	done    bool

	records bool   // all of them are looked at
	keys    bool   // and all keys
	after   []byte // the last key that was looked at

	forget   int64 // wakes up to this one are old
	lastWake int64
}

// pruneStep takes one step. The step is counted only when it is durable.
func (s *Store) pruneStep(ctx context.Context, p *pruning) error {
	var next pruning
	err := s.work(ctx, func(tx *transaction) {
		next = *p
		switch rows := min(pruneRows, p.left); {
		case !next.records:
			n := tx.change("deleteEnded", (tx.now+1)<<recordShift-1, int64(rows))
			next.records = n < rows
			next.took(n)
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

func (p *pruning) took(n int) {
	p.removed += n
	p.left -= n
}

// pruneKeys does what follows by itself for some keys, and removes their places that are
// over, wherever they are in the queue.
func (tx *transaction) pruneKeys(p *pruning, rows int) {
	keys := tx.nextKeys("keys", p.after, []byte{255}, rows)
	p.keys = len(keys) < rows
	for _, k := range keys {
		tx.k, tx.asker = append(tx.k[:0], k...), dibs.Token{}
		n := tx.change("deleteDead", tx.k, tx.now, int64(rows))
		if rows -= n; rows > 0 {
			if p.after = k; tx.settleDown().forgotten {
				n, rows = n+1, rows-1
			}
		}
		if p.took(n); rows == 0 { // there may be more
			p.keys = false
			return
		}
	}
}

// pruneWakes deletes the wakes that were there a round ago already. The last one
// stays, so that the next one's number is higher.
func (tx *transaction) pruneWakes(p *pruning) {
	tx.get("lastWake", func(row *lite.Stmt) { p.lastWake = row.Int(0) })
	if p.forget != 0 {
		tx.change("forgetWakes", min(p.forget, p.lastWake-1))
		p.forget = 0
	}
}

// vacuum gives free pages back, unless they are the application's.
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
