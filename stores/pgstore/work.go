package pgstore

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/remote"
	"github.com/dibs-go/dibs/store/storekit"
)

// work is a transaction on some keys, in two round trips: it loads them, do changes them, and
// it writes the difference.
func (s *Store) work(ctx context.Context, how remote.Load, b *engine.Batch, do func()) error {
	pool, begin := s.front, s.sql.beginWork
	switch {
	case how >= remote.Looking:
		begin = s.sql.beginLook
	case how != remote.Creating:
		pool = s.back
	}
	return use(ctx, pool, func(pg *pgconn.PgConn) error {
		ask := slices.Clone(begin)
		for {
			if err := s.send(ctx, pg, false, append(ask, s.load(b, how)...)...); err != nil {
				return err
			}
			if how == remote.Passing {
				b.Locked()
			}
			if do(); !b.Short() {
				break
			}
			ask = nil
		}
		all := s.write(b)
		if how == remote.Looking && b.Replays { // other loads write, and wait
			all = append(all, query{statement: s.sql.outlive})
		}
		return s.send(ctx, pg, true, append(all, commit)...)
	})
}

// load returns the queries that lock and read the rows of the keys, and what belongs to them.
func (s *Store) load(b *engine.Batch, how remote.Load) (all []query) {
	b.Begin()
	keys := keyArray(b.Keys)
	add := func(q *statement, row func(r *reading), more ...any) {
		all = append(all, query{q, append([][]byte{keys}, values(more...)...), row})
	}
	rows := s.sql.rows
	switch how {
	case remote.Creating, remote.Locking: // a key with only reserved places has no row
		add(s.sql.create, nil)
		rows = s.sql.lockRows
	case remote.Passing:
		rows = s.sql.passRows
	}
	var k string
	add(rows, func(r *reading) {
		var w engine.Row
		r.scan(&k)
		r.scan(w.Fields()...)
		b.AddRow(k, w)
	})
	all = append(all, query{s.sql.now, nil, func(r *reading) {
		var now, mark int64
		r.scan(&now, &mark)
		b.Now(now, now, mark)
	}})
	add(s.sql.leases, func(r *reading) {
		var l engine.Lease
		r.scan(&k)
		r.scan(l.Fields()...)
		b.AddLease(k, l)
	})
	add(s.sql.saved, func(r *reading) {
		var fence int64
		r.scan(&k, &fence)
		b.AddSaved(k, fence)
	})
	tokens := []any{"", ""}
	for k, wants := range b.Wants {
		for _, t := range wants {
			tokens = append(tokens, k, t)
		}
	}
	wanted := arrays(2, tokens)
	places, numbers := s.sql.places, s.sql.numbers
	if how >= remote.Looking {
		places, numbers = s.sql.lookPlaces, s.sql.lookNumbers
	}
	add(places, func(r *reading) {
		var first bool
		var p engine.Place
		r.scan(&first, &p.Unreachable, &k)
		r.scan(p.Fields()...)
		b.AddPlace(k, first, p)
	}, b.Limit)
	last := &all[len(all)-1]
	last.params = append(last.params, wanted[0], wanted[1])
	add(numbers, func(r *reading) {
		var length, from int64
		r.scan(&k, &length, &from)
		b.Queue(k, length, from)
	})
	return all
}

// write returns the queries that write the changes and, once they are committed, notify waiters.
func (s *Store) write(b *engine.Batch) (all []query) {
	c := b.Changes()
	for _, w := range []struct {
		sql  *statement
		rows [][]any
	}{
		{s.sql.writeRows, c.Rows}, {s.sql.dropLeases, c.NoLeases}, {s.sql.writeLeases, c.Leases},
		{s.sql.dropNumbers, c.NoNumbers}, {s.sql.dropPlaces, c.NoPlaces}, {s.sql.writePlaces, c.Places},
		{s.sql.notify, messages(b.WakeUps())},
	} {
		if len(w.rows) > 0 {
			all = append(all, query{statement: w.sql, params: arrays(len(w.rows[0]), slices.Concat(w.rows...))})
		}
	}
	for _, x := range c.Steps {
		q := query{statement: s.sql.steps[x.Does], params: values(x.K)}
		switch x.Does {
		case engine.WriteRecord:
			q.params = values(x.K, x.Data)
		case engine.WriteProgress:
			q.params = values(x.K, x.Fence, x.Data)
		case engine.DropProgress, engine.ReadProgress:
			q.params = values(x.K, x.Fence)
		}
		switch {
		case x.To != nil:
			q.row = func(r *reading) { r.scan(x.To) }
		case x.Size != nil:
			q.row = func(r *reading) {
				var n int64
				r.scan(&n)
				*x.Size = int(n)
			}
		}
		all = append(all, q)
	}
	return all
}

// maxMessage is how many bytes a message has before no token is added; the server takes fewer
// than 8,000.
const maxMessage = 7000

// messages returns a row for each message: the process, and tokens, which subscriber.receive
// reads.
func messages(wakeUps []engine.WakeUp) (rows [][]any) {
	open := map[int64]int{} // the last message of each process
	for _, t := range wakeUps {
		if t.Process == 0 {
			continue
		}
		word := hex.EncodeToString(t.Token[:])
		if a := &t.Answer; a.State != 0 {
			word += fmt.Sprintf(":%d:%d", a.Fence, a.Attempt)
		}
		if n, ok := open[t.Process]; ok && len(rows[n][1].(string)) < maxMessage {
			rows[n][1] = rows[n][1].(string) + " " + word
			continue
		}
		open[t.Process] = len(rows)
		rows = append(rows, []any{t.Process, word})
	}
	return rows
}

// list returns keys that have something to list, also keys that have only reserved places.
func (s *Store) list(ctx context.Context, part storekit.Part, first, last string, limit int) (keys []string, err error) {
	ask := query{s.sql.list[part], values(first, last, int64(limit)), func(r *reading) {
		var k string
		r.scan(&k)
		keys = append(keys, k)
	}}
	err = use(ctx, s.front, func(pg *pgconn.PgConn) error {
		keys = nil
		return s.send(ctx, pg, false, append(slices.Clone(s.sql.beginLook), ask, commit)...)
	})
	return keys, err
}
