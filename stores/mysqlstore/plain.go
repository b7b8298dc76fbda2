package mysqlstore

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/engine"
)

// Plain calls take one round trip: they are about keys with one permit, without waiters or other
// rows. Calls that are not plain take two more.

// plain is a key's row, as a script of plain calls reads it.
type plain struct {
	engine.Row
	data []byte // of the record
}

const (
	plainColumns = "x.k,x.fence,x.busy,x.token,x.since,x.ends,x.fingerprint,x.rec_token,x.rec_written,x.rec_ends,x.rec_fingerprint"

	// free is the condition of a free key without a record, not even one that has expired.
	free = "token='' AND busy=0 AND rec_ends=0"
)

// takes is the end of the INSERT that takes keys: it takes rows that exist if they are free. The
// token is assigned last, because the condition reads it.
var takes = func() string {
	set := []string{"fence=IF(" + free + ",GREATEST(fence+1,VALUES(fence)),fence)"}
	for c := range strings.SplitSeq("attempt,since,ends,once,seq,inherits,fingerprint,owner,token", ",") {
		set = append(set, c+"=IF("+free+",VALUES("+c+"),"+c+")")
	}
	return " ON DUPLICATE KEY UPDATE " + strings.Join(set, ",")
}()

// finds returns a function that puts rows of plainColumns, and maybe data, into found.
func finds(found map[string]*plain) func(r *reading) {
	return func(r *reading) {
		p, k := &plain{}, ""
		h, x := &p.Holder, &p.Record
		r.scan(&k, &p.Fence, &p.Busy, &h.Token, &h.Since, &h.Ends, &h.Fingerprint, &x.Token, &x.Written, &x.Ends, &x.Fingerprint)
		if r.at < len(r.row) {
			r.scan(&p.data)
		}
		found[k] = p
	}
}

// alone returns the keys, and whether only one element is about each.
func alone(part []int, keys []string) map[string]bool {
	once := map[string]bool{}
	for _, i := range part {
		_, again := once[keys[i]]
		once[keys[i]] = !again
	}
	return once
}

// claim makes the claims that are plain, with one statement that commits by itself, and
// returns the others.
func (s *Store) claim(ctx context.Context, part []int, keys []string, claims []store.Claim, answers []store.Answer, _ int64) (rest []int, err error) {
	once := alone(part, keys)
	order := slices.Clone(part)
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(keys[a], keys[b]) })
	ask := s.script()
	ask.raw("SET @N=" + clock).done()
	records, inserts := false, 0
	for _, i := range order {
		c := &claims[i]
		records = records || c.MaxAge > 0
		if !once[keys[i]] || c.Mode > store.Queue || c.Permits != 1 {
			continue
		}
		if inserts++; inserts == 1 {
			ask.raw("SET @F=GREATEST(@N,(SELECT fence+1 FROM @meta))").done()
			ask.raw("INSERT INTO @key (k,fence,since,ends,token,attempt,once,seq,inherits,fingerprint,owner) VALUES ")
		} else {
			ask.raw(",")
		}
		ask.raw("(").value(keys[i]).raw(",@F,@N,@N+")
		list[any](ask, engine.Micros(c.TTL), c.Token, int64(1), c.AtMostOnce, int64(0), int64(0), c.Fingerprint, c.Owner.String()).raw(")")
	}
	if inserts > 0 {
		ask.raw(takes).done()
	}
	var began, now int64
	found := make(map[string]*plain, len(part))
	ask.raw("SELECT @N," + clock).asks(func(r *reading) { r.scan(&began, &now) })
	if records {
		ask.raw("SELECT " + plainColumns + ",r.data FROM @key x FORCE INDEX (PRIMARY) LEFT JOIN @record r ON r.k=x.k AND x.rec_ends>@N AND x.busy=0")
	} else {
		ask.raw("SELECT " + plainColumns + " FROM @key x FORCE INDEX (PRIMARY)")
	}
	in(ask.raw(" WHERE x.k"), sorted(once)).asks(finds(found))
	if err := ask.on(ctx, s.front); err != nil {
		return nil, err
	}
	for _, i := range part {
		p := cmp.Or(found[keys[i]], &plain{})
		answers[i] = store.Answer{}
		if !once[keys[i]] || !p.answer(&claims[i], began, now, &answers[i]) {
			rest = append(rest, i)
		}
	}
	return rest, nil
}

// answer answers a claim if the row is enough for that. A grant of this script has the time began.
func (p *plain) answer(c *store.Claim, began, now int64, a *store.Answer) bool {
	h := &p.Holder
	held := !h.Token.IsZero()
	switch {
	case held && h.Token == c.Token && h.Since == began:
		a.State, a.Fence, a.Attempt = store.Granted, uint64(p.Fence), 1
		return true
	case p.Busy, held && (h.Ends <= now || h.Token == c.Token):
		return false
	case held && h.Fingerprint.Differs(c.Fingerprint):
		a.State = store.Mismatch
		return true
	case p.replay(c, now, a):
		return true
	case held && (c.Mode == store.Try || c.Mode == store.Look):
		a.State, a.Fence, a.Left = store.Held, uint64(max(p.Fence, now-1)), engine.Duration(h.Ends-now)
		return true
	case !held && c.Mode == store.Look:
		a.State = store.Free
		return true
	}
	return false
}

// replay answers a claim from the record, if that answers it.
func (p *plain) replay(c *store.Claim, now int64, a *store.Answer) bool {
	r := &p.Record
	if !r.Accepts(engine.Micros(c.MaxAge), now) {
		return false
	}
	if r.Fingerprint.Differs(c.Fingerprint) {
		a.State = store.Mismatch
		return true
	}
	a.State = store.Done
	a.Record = store.Record{Data: p.data, Age: engine.Duration(max(now-r.Written, 0)), Left: engine.Duration(r.Ends - now)}
	return p.data != nil
}

// group is keys with their tokens.
type group struct{ keys, both []string }

func (g *group) add(k string, t store.Token) {
	g.keys, g.both = append(g.keys, k), append(g.both, string(t[:])+k)
}

// of adds the condition that a row has one of these keys and its token.
func (g *group) of(ask *script) *script {
	return in(in(ask.raw(" WHERE k"), g.keys).raw(" AND CONCAT(token,k)"), g.both)
}

// grouped groups keys and tokens by a duration, in microseconds.
func grouped(mine []int, keys []string, of func(i int) (lasts int64, t store.Token)) map[int64]*group {
	groups := map[int64]*group{}
	for _, i := range mine {
		lasts, t := of(i)
		if groups[lasts] == nil {
			groups[lasts] = &group{}
		}
		groups[lasts].add(keys[i], t)
	}
	return groups
}

// locked is what a script of lockPlain reads: the rows, and the times before and after they were
// locked. A later statement may see a row that did not exist when the rows were locked. Its lease
// is younger than before.
type locked struct {
	rows          map[string]*plain
	before, after int64
}

// lockPlain begins a script that locks the rows of keys and reads them.
func (s *Store) lockPlain(mine []int, keys []string, found *locked) *script {
	found.rows = map[string]*plain{}
	ask := s.script()
	ask.raw("START TRANSACTION").done()
	ask.raw("SET @O=" + clock).done()
	in(ask.raw("SELECT "+plainColumns+" FROM @key x FORCE INDEX (PRIMARY) WHERE x.k"), sorted(alone(mine, keys))).raw(" ORDER BY x.k FOR UPDATE").asks(finds(found.rows))
	ask.raw("SET @N=" + clock).done()
	return ask.raw("SELECT @O,@N").asks(func(r *reading) { r.scan(&found.before, &found.after) })
}

// of returns the row of a key, and whether the statements of the script found the token's lease in
// it.
func (l *locked) of(k string, t store.Token) (p *plain, met bool) {
	p = cmp.Or(l.rows[k], &plain{})
	return p, p.Holder.Token == t && p.Holder.Ends > l.after && p.Holder.Since < l.before
}

// renew makes the renewals that one statement for each TTL is enough for, and returns the
// others.
func (s *Store) renew(ctx context.Context, part []int, keys []string, renewals []store.Renewal, errs []error) (rest []int, err error) {
	mine, rest := split(part, keys, func(i int) bool { return renewals[i].Progress == nil })
	if len(mine) == 0 {
		return rest, nil
	}
	var found locked
	ask := s.lockPlain(mine, keys, &found)
	for ttl, g := range grouped(mine, keys, func(i int) (int64, store.Token) { return engine.Micros(renewals[i].TTL), renewals[i].Token }) {
		g.of(ask.raw("UPDATE @key FORCE INDEX (PRIMARY) SET ends=@N+").value(ttl)).raw(" AND ends>@N AND since<@O").done()
	}
	ask.raw("COMMIT").done()
	if err := ask.on(ctx, s.back); err != nil {
		return nil, err
	}
	for _, i := range mine {
		switch p, met := found.of(keys[i], renewals[i].Token); {
		case met:
			errs[i] = nil
		case p.Busy, p.Holder.Token == renewals[i].Token: // the lease may be in a row of its own
			rest = append(rest, i)
		default:
			errs[i] = store.ErrLost
		}
	}
	return rest, nil
}

// settle makes the settlements that are plain, and returns the others.
func (s *Store) settle(ctx context.Context, part []int, keys []string, settlements []store.Settlement, errs []error) (rest []int, err error) {
	mine, rest := split(part, keys, func(i int) bool { return settlements[i].Outcome != store.Abandon })
	if len(mine) == 0 {
		return rest, nil
	}
	const stands = " AND busy=0 AND ends>@N AND since<@O"
	var found locked
	ask := s.lockPlain(mine, keys, &found)
	for _, i := range mine {
		if x := &settlements[i]; x.Outcome == store.Keep {
			ask.raw("INSERT INTO @record (k,data) SELECT k,").value(x.Data)
			ask.raw(" FROM @key WHERE k=").value(keys[i]).raw(" AND token=").value(x.Token).raw(stands)
			ask.raw(" ON DUPLICATE KEY UPDATE data=VALUES(data)").done()
		}
	}
	const nothing = 0
	for lasts, g := range grouped(mine, keys, func(i int) (lasts int64, t store.Token) {
		if x := &settlements[i]; x.Outcome == store.Keep {
			lasts = engine.Micros(x.Retention)
		}
		return lasts, settlements[i].Token
	}) {
		ask.raw("UPDATE @key FORCE INDEX (PRIMARY) SET ")
		if lasts != nothing {
			ask.raw("rec_token=token,rec_written=@N,rec_fingerprint=fingerprint,rec_ends=@N+").value(lasts).raw(",")
		}
		g.of(ask.raw("token=''")).raw(stands).done()
	}
	ask.raw("COMMIT").done()
	if err := ask.on(ctx, s.back); err != nil {
		return nil, err
	}
	for _, i := range mine {
		x := &settlements[i]
		switch p, met := found.of(keys[i], x.Token); {
		case met && !p.Busy, x.Outcome == store.Keep && p.Record.Of(x.Token, found.after): // or it was sent twice
			errs[i] = nil
		case p.Busy, p.Holder.Token == x.Token, found.rows[keys[i]] == nil:
			rest = append(rest, i)
		default:
			errs[i] = store.ErrLost
		}
	}
	return rest, nil
}

// split returns the elements that are alone with their keys and may be plain, and the others.
func split(part []int, keys []string, may func(i int) bool) (mine, rest []int) {
	once := alone(part, keys)
	for _, i := range part {
		if once[keys[i]] && may(i) {
			mine = append(mine, i)
		} else {
			rest = append(rest, i)
		}
	}
	return mine, rest
}
