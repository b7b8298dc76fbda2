package pgstore

import (
	"context"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
)

// Plain calls take one statement, however many elements they have. See sql/plain.sql.

const claimColumns, renewColumns, settleColumns = 9, 4, 5

// claim makes the claims that are plain, and returns the others.
func (s *Store) claim(ctx context.Context, part []int, keys []string, claims []store.Claim, answers []store.Answer, process int64) (rest []int, err error) {
	asked, rows := make([]int, 0, len(part)), make([]any, 0, claimColumns*len(part))
	var last store.Owner // mostly all have the same
	var owner string
	for _, i := range part {
		c := &claims[i]
		if c.Mode == store.Reserve || c.Permits != 1 || !c.From.IsZero() {
			rest = append(rest, i)
			continue
		}
		if len(asked) == 0 || c.Owner != last {
			last, owner = c.Owner, c.Owner.String()
		}
		asked = append(asked, i)
		rows = append(rows, &keys[i], int64(c.Mode), &c.Token, &c.TTL, &c.PlaceTTL, &c.MaxAge, &c.AtMostOnce, &c.Fingerprint, owner)
	}
	if len(asked) == 0 {
		return rest, nil
	}
	params := append(arrays(claimColumns, rows), values(process, int64(s.options.MaxWaiters))...)
	var got struct {
		n, state, fence, remains, ahead, age int64
		data                                 []byte
	}
	err = s.ask(ctx, s.front, query{s.sql.claim, params, func(r *reading) {
		r.scan(&got.n, &got.state, &got.fence, &got.remains, &got.ahead, &got.age, &got.data)
		if !number(r, got.n, len(asked)) {
			return
		}
		i := asked[got.n-1]
		a := &answers[i]
		*a = store.Answer{State: store.State(got.state)}
		switch a.State {
		case store.Granted:
			a.Fence, a.Attempt = uint64(got.fence), 1
		case store.Held:
			a.Fence, a.Left, a.Ahead, a.Queued = uint64(got.fence), engine.Duration(got.remains), int(got.ahead), claims[i].Mode == store.Queue
		case store.Done:
			a.Record = store.Record{Data: got.data, Age: engine.Duration(max(got.age, 0)), Left: engine.Duration(got.remains)}
		case store.Free, store.Mismatch:
		default:
			rest = append(rest, i)
		}
	}})
	return rest, err
}

// first splits the elements into the first of each lease, and the others, which are made after it.
// One statement updates a row once.
func first(part []int, keys []string, token func(i int) store.Token) (mine, rest []int) {
	type lease struct {
		key   string
		token store.Token
	}
	seen := make(map[lease]bool, len(part))
	for _, i := range part {
		if l := (lease{keys[i], token(i)}); seen[l] {
			rest = append(rest, i)
		} else {
			seen[l] = true
			mine = append(mine, i)
		}
	}
	return mine, rest
}

// renew makes the first renewal of each lease, and returns the others.
func (s *Store) renew(ctx context.Context, part []int, keys []string, renewals []store.Renewal, errs []error) ([]int, error) {
	part, rest := first(part, keys, func(i int) store.Token { return renewals[i].Token })
	rows := make([]any, 0, renewColumns*len(part))
	for _, i := range part {
		r := &renewals[i]
		rows = append(rows, &keys[i], &r.Token, &r.TTL, r.Progress)
		errs[i] = store.ErrLost
	}
	return rest, s.ask(ctx, s.back, query{s.sql.renew, arrays(renewColumns, rows), func(r *reading) {
		var n int64
		if r.scan(&n); number(r, n, len(part)) {
			errs[part[n-1]] = nil
		}
	}})
}

// settle makes the settlements that are plain, and returns the others.
func (s *Store) settle(ctx context.Context, part []int, keys []string, settlements []store.Settlement, errs []error) (rest []int, err error) {
	part, rest = first(part, keys, func(i int) store.Token { return settlements[i].Token })
	rows := make([]any, 0, settleColumns*len(part))
	for _, i := range part {
		x := &settlements[i]
		data := x.Data
		if data == nil {
			data = []byte{}
		}
		rows = append(rows, &keys[i], &x.Token, int64(x.Outcome), &x.Retention, data)
		errs[i] = store.ErrLost
	}
	err = s.ask(ctx, s.back, query{s.sql.settle, append(arrays(settleColumns, rows), values(&s.options.pushedTTL)...), func(r *reading) {
		var n int64
		r.scan(&n)
		if number(r, max(n, -n), len(part)) {
			if n < 0 {
				rest = append(rest, part[-n-1])
			} else {
				errs[part[n-1]] = nil
			}
		}
	}})
	return rest, err
}
