package sqlitestore

import (
	"context"
	"math"
	"time"

	"github.com/dibs-go/dibs"
)

const (
	// pruneRows and pruneBytes bound what one transaction prunes besides the
	// calls that it runs, so that these hardly notice.
	pruneRows  = 32
	pruneBytes = 1 << 20
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
	err := s.work(ctx, func(tx *transaction) error {
		next = *p
		return tx.prune(&next)
	})
	if err == nil {
		*p = next
	}
	return err
}

func (tx *transaction) prune(p *pruning) error {
	rows := min(pruneRows, p.left)
	switch {
	case !p.records:
		return tx.pruneRecords(p, rows)
	case !p.keys:
		return tx.pruneKeys(p, rows)
	}
	if err := tx.pruneWakes(p); err != nil {
		return err
	}
	return tx.vacuum(p)
}

// pruneRecords removes ended records from the table's left edge.
func (tx *transaction) pruneRecords(p *pruning, rows int) error {
	st := tx.st.endedRecords
	st.BindInt(1, (tx.now+1)<<recordShift-1)
	st.BindInt(2, int64(rows))
	var ids [pruneRows]int64
	n, bytes := 0, int64(0)
	for n < rows && bytes < pruneBytes {
		row, err := st.Step()
		if err != nil {
			st.Reset()
			return err
		}
		if !row {
			p.records = true
			break
		}
		ids[n] = st.Int(0)
		bytes += st.Int(1)
		n++
	}
	st.Reset()
	for _, id := range ids[:n] {
		tx.st.deleteRecordByID.BindInt(1, id)
		if _, err := tx.st.deleteRecordByID.Run(); err != nil {
			return err
		}
	}
	p.took(tx, n)
	return nil
}

func (p *pruning) took(tx *transaction, n int) {
	p.removed += n
	p.left -= n
	tx.dirty = tx.dirty || n > 0
}

// pruneKeys does what follows by itself for some keys, and removes their places that are
// over, wherever they are in the queue.
func (tx *transaction) pruneKeys(p *pruning, rows int) error {
	keys, err := tx.nextKeys(tx.st.keys, p.after, []byte{255}, rows)
	if err != nil {
		return err
	}
	p.keys = len(keys) < rows
	for i, k := range keys {
		tx.k, tx.asker = append(tx.k[:0], k...), dibs.Token{}
		dead := tx.st.deleteDead
		dead.BindBlob(1, tx.k)
		dead.BindInt(2, tx.now)
		dead.BindInt(3, int64(rows))
		if _, err := dead.Run(); err != nil {
			return err
		}
		n := tx.s.conn.Changes()
		p.took(tx, n)
		if rows -= n; rows == 0 { // there may be more
			p.keys = false
			return nil
		}
		ks, err := tx.load()
		if err != nil {
			return err
		}
		ks.freed = true // perhaps
		if err := tx.serve(ks); err != nil {
			return err
		}
		if p.after = k; ks.forgotten {
			p.took(tx, 1)
			if rows--; rows == 0 {
				p.keys = p.keys && i == len(keys)-1
				return nil
			}
		}
	}
	return nil
}

// pruneWakes deletes the wakes that were there a round ago already. The last one
// stays, so that the next one's number is higher.
func (tx *transaction) pruneWakes(p *pruning) error {
	st := tx.st.lastWake
	_, err := st.Step()
	p.lastWake = st.Int(0)
	st.Reset()
	if err != nil || p.forget == 0 {
		return err
	}
	tx.st.forgetWakes.BindInt(1, min(p.forget, p.lastWake-1))
	if _, err := tx.st.forgetWakes.Run(); err != nil {
		return err
	}
	tx.dirty = tx.dirty || tx.s.conn.Changes() > 0
	p.forget = 0
	return nil
}

// vacuum gives free pages back, unless they are the application's.
func (tx *transaction) vacuum(p *pruning) error {
	if tx.s.opt.Shared {
		p.done = true
		return nil
	}
	free, err := tx.s.conn.Query("PRAGMA freelist_count")
	if err != nil {
		return err
	}
	if free <= spare {
		p.done = true
		return nil
	}
	tx.dirty = true
	_, err = tx.s.conn.Query(vacuumSQL)
	return err
}
