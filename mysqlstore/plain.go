package mysqlstore

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/dibs-go/dibs"
)

// Plain leases, which are most of them, take one round trip: of keys with one permit,
// for which nobody waits, and of which nothing else is known. What is not plain is
// left for a batch, which takes some more.

// plain is what a script finds out about a key's row.
type plain struct {
	row
	data []byte // of the record
}

const (
	plainColumns = "x.k,x.fence,x.permits,x.busy,x.queued,x.saved,x.token,x.since,x.ends,x.offered,x.fingerprint," +
		"x.rec_token,x.rec_written,x.rec_ends,x.rec_fingerprint"

	// free is a key that nothing is known of. It has a record also when that has ended.
	free = "token='' AND busy=0 AND rec_ends=0"
)

// takes is the end of the INSERT that takes keys: rows that are there already are
// taken if they are free. The last assignment is that of what the condition looks at.
var takes = func() string {
	set := []string{"fence=IF(" + free + ",GREATEST(fence+1,VALUES(fence)),fence)"}
	for c := range strings.SplitSeq("permits,attempt,since,ends,once,fingerprint,owner,token", ",") {
		set = append(set, c+"=IF("+free+",VALUES("+c+"),"+c+")")
	}
	return " ON DUPLICATE KEY UPDATE " + strings.Join(set, ",")
}()

// read reads plainColumns.
func (p *plain) read(r *reading) {
	p.there = true
	p.fence, p.permits, p.busy, p.queued, p.saved = r.int(), r.int(), r.bool(), r.bool(), r.bool()
	h := &p.holder
	h.token, h.since, h.ends, h.offered, h.fingerprint = r.token(), r.int(), r.int(), r.bool(), r.fingerprint()
	p.record = record{token: r.token(), written: r.int(), ends: r.int(), fingerprint: r.fingerprint()}
}

// deep reports whether there is more to know than the row.
func (p *plain) deep() bool { return p.queued || p.saved || p.permits > 1 }

// alone returns which of the keys only one element is about.
func alone(part []int, key func(int) string) map[string]bool {
	once := map[string]bool{}
	for _, i := range part {
		k := key(i)
		_, again := once[k]
		once[k] = !again
	}
	return once
}

// claimPlain makes those claims that are plain, with one statement that commits by
// itself, and returns the others.
func (s *Store) claimPlain(ctx context.Context, part []int, keys []string, claims []dibs.Claim, answers []dibs.Answer) (rest []int, deep map[string]bool, err error) {
	once := alone(part, func(i int) string { return keys[i] })
	order := slices.Clone(part)
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(keys[a], keys[b]) })
	ask := &script{}
	ask.raw("SET @N=" + clock).done()
	records, inserts := false, 0
	for _, i := range order {
		c := &claims[i]
		records = records || c.MaxAge > 0
		if !once[keys[i]] || c.Mode > dibs.Queue || c.Permits != 1 || !c.Redeems.IsZero() {
			continue
		}
		if inserts++; inserts == 1 {
			ask.raw(s.names.sql("SET @F=GREATEST(@N,(SELECT fence+1 FROM @meta))")).done()
			ask.raw(s.names.sql("INSERT INTO @key (k,fence,permits,token,attempt,since,ends,once,fingerprint,owner) VALUES "))
		} else {
			ask.raw(",")
		}
		ask.raw("(").bytes(keys[i]).raw(",@F,1,").token(&c.Token).raw(",1,@N,@N+").int(micros(c.TTL)).raw(",").bool(c.AtMostOnce)
		ask.raw(",").fingerprint(&c.Fingerprint).raw(",").bytes(c.Owner.String()).raw(")")
	}
	if inserts > 0 {
		ask.raw(takes).done()
	}
	var began, now int64
	found := make(map[string]*plain, len(part))
	ask.raw("SELECT @N," + clock).asks(func(r *reading) error { began, now = r.int(), r.int(); return r.err })
	ask.raw("SELECT " + plainColumns)
	if records {
		ask.raw(s.names.sql(",r.data FROM @key x FORCE INDEX (PRIMARY) LEFT JOIN @record r ON r.k=x.k AND x.rec_ends>@N AND x.busy=0"))
	} else {
		ask.raw(s.names.sql(",NULL FROM @key x FORCE INDEX (PRIMARY)"))
	}
	ask.raw(" WHERE x.k IN (")
	for n, i := range order {
		if n > 0 && keys[order[n-1]] == keys[i] {
			continue
		}
		if n > 0 {
			ask.raw(",")
		}
		ask.bytes(keys[i])
	}
	ask.raw(")").asks(func(r *reading) error {
		p := &plain{}
		k := r.string()
		p.read(r)
		if !r.null() {
			p.data = slices.Clone(r.bytes())
		}
		found[k] = p
		return r.err
	})
	if err := use(ctx, s.front, func(c session) error { return c.run(ctx, ask) }); err != nil {
		return nil, nil, err
	}
	deep = map[string]bool{}
	for _, i := range part {
		p := found[keys[i]]
		if p == nil {
			p = &plain{}
		}
		answers[i] = dibs.Answer{}
		if !once[keys[i]] || !p.answer(&claims[i], began, now, &answers[i]) {
			rest = append(rest, i)
			deep[keys[i]] = p.deep()
		}
	}
	return rest, deep, nil
}

// answer answers a claim, if the row is all that there is to know. Those that were
// granted are since that time.
func (p *plain) answer(c *dibs.Claim, began, now int64, a *dibs.Answer) bool {
	h := &p.holder
	switch {
	case h.token == c.Token && !c.Token.IsZero() && h.since == began && !h.offered:
		a.State, a.Fence, a.Attempt = dibs.Granted, uint64(p.fence), 1
		return true
	case p.busy, p.permits > 1 && !h.token.IsZero(), !c.Redeems.IsZero() && h.token.IsZero():
		return false
	case h.token.IsZero():
		return p.replay(c, now, a) || p.free(c, a)
	case h.ends <= now, h.token == c.Token:
		return false
	case c.Permits != 1:
		a.State, a.Permits = dibs.PermitsDiffer, 1
		return true
	case h.fingerprint.Differs(c.Fingerprint):
		a.State = dibs.Mismatch
		return true
	case p.replay(c, now, a):
		return true
	case c.Mode == dibs.Try || c.Mode == dibs.Look:
		a.State, a.Fence, a.Left = dibs.Held, uint64(max(p.fence, now-1)), duration(h.ends-now)
		return true
	}
	return false
}

// free answers a look at a key that nobody has.
func (p *plain) free(c *dibs.Claim, a *dibs.Answer) bool {
	if c.Mode != dibs.Look {
		return false
	}
	a.State = dibs.Free
	return true
}

// replay answers from the record, if there is one that does.
func (p *plain) replay(c *dibs.Claim, now int64, a *dibs.Answer) bool {
	r := &p.record
	if c.MaxAge == 0 || r.ends <= now || r.written < now-micros(c.MaxAge) {
		return false
	}
	if r.fingerprint.Differs(c.Fingerprint) {
		a.State = dibs.Mismatch
		return true
	}
	if p.data == nil {
		return false
	}
	a.State = dibs.Done
	a.Record = dibs.Record{Data: p.data, Age: duration(max(now-r.written, 0)), Left: duration(r.ends - now)}
	return true
}

// lockPlain begins a script that locks the rows of keys and reads them.
func (s *Store) lockPlain(keys map[string]bool, found map[string]*plain, now *int64) *script {
	ask := &script{}
	ask.raw("START TRANSACTION").done()
	ask.raw("SELECT " + plainColumns + s.names.sql(" FROM @key x FORCE INDEX (PRIMARY) WHERE x.k IN (")).keys(sorted(keys)).raw(") ORDER BY x.k FOR UPDATE")
	ask.asks(func(r *reading) error {
		p := &plain{}
		k := r.string()
		p.read(r)
		found[k] = p
		return r.err
	})
	ask.raw("SET @N=" + clock).done()
	ask.raw("SELECT @N").asks(func(r *reading) error { *now = r.int(); return r.err })
	return ask
}

// those adds the condition that a row is one of these keys, and has the token that
// belongs to it.
func (ask *script) those(keys []string, tokens []dibs.Token) *script {
	ask.raw(" WHERE k IN (").keys(keys).raw(") AND CONCAT(token,k) IN (")
	for n, k := range keys {
		if n > 0 {
			ask.raw(",")
		}
		ask.bytes(string(tokens[n][:]) + k)
	}
	return ask.raw(")")
}

// group is elements that one statement is good for.
type group struct {
	keys   []string
	tokens []dibs.Token
}

func (g *group) add(k string, t dibs.Token) {
	g.keys, g.tokens = append(g.keys, k), append(g.tokens, t)
}

// renewPlain makes those renewals that one statement for each TTL is enough for, and
// returns the others.
func (s *Store) renewPlain(ctx context.Context, part []int, renewals []dibs.Renewal, errs []error) (rest []int, deep map[string]bool, err error) {
	deep = map[string]bool{}
	keys := func(i int) string { return keyOf(renewals[i].Key) }
	once := alone(part, keys)
	byTTL := map[int64]*group{}
	locks := map[string]bool{}
	var mine []int
	for _, i := range part {
		r := &renewals[i]
		if k := keys(i); !once[k] || r.Progress != nil {
			rest = append(rest, i)
		} else {
			mine, locks[k] = append(mine, i), true
			ttl := micros(r.TTL)
			if byTTL[ttl] == nil {
				byTTL[ttl] = &group{}
			}
			byTTL[ttl].add(k, r.Token)
		}
	}
	if len(mine) == 0 {
		return rest, deep, nil
	}
	var now int64
	found := map[string]*plain{}
	ask := s.lockPlain(locks, found, &now)
	for ttl, g := range byTTL {
		ask.raw(s.names.sql("UPDATE @key FORCE INDEX (PRIMARY) SET ends=@N+")).int(ttl)
		ask.those(g.keys, g.tokens).raw(" AND offered=0 AND ends>@N").done()
	}
	ask.raw("COMMIT").done()
	if err := use(ctx, s.back, func(c session) error { return c.run(ctx, ask) }); err != nil {
		return nil, nil, err
	}
	for _, i := range mine {
		r := &renewals[i]
		p := found[keys(i)]
		switch {
		case p != nil && p.permits > 1:
			rest = append(rest, i)
			deep[keys(i)] = true
		case p == nil, p.holder.token != r.Token, p.holder.offered, p.holder.ends <= now:
			errs[i] = dibs.ErrLost
		default:
			errs[i] = nil
		}
	}
	return rest, deep, nil
}

// settlePlain makes those settlements that are plain, and returns the others.
func (s *Store) settlePlain(ctx context.Context, part []int, settlements []dibs.Settlement, errs []error) (rest []int, deep map[string]bool, err error) {
	deep = map[string]bool{}
	keys := func(i int) string { return keyOf(settlements[i].Key) }
	once := alone(part, keys)
	releases, keeps := &group{}, map[int64]*group{}
	locks := map[string]bool{}
	var mine []int
	for _, i := range part {
		x := &settlements[i]
		k := keys(i)
		if !once[k] || x.Outcome == dibs.Abandon {
			rest = append(rest, i)
			continue
		}
		mine, locks[k] = append(mine, i), true
		if x.Outcome != dibs.Keep {
			releases.add(k, x.Token)
			continue
		}
		lasts := micros(x.Retention)
		if keeps[lasts] == nil {
			keeps[lasts] = &group{}
		}
		keeps[lasts].add(k, x.Token)
	}
	if len(mine) == 0 {
		return rest, deep, nil
	}
	var now int64
	found := map[string]*plain{}
	ask := s.lockPlain(locks, found, &now)
	const stands = " AND busy=0 AND ends>@N"
	var ended, known int64
	count := func(r *reading) error { ended += r.int(); return r.err }
	for _, i := range mine {
		x := &settlements[i]
		if x.Outcome != dibs.Keep {
			continue
		}
		ask.raw(s.names.sql("INSERT INTO @record (k,ends,data) SELECT k,@N+")).int(micros(x.Retention)).raw(",").data(some(x.Data))
		ask.raw(s.names.sql(" FROM @key WHERE k=")).bytes(keys(i)).raw(" AND token=").token(&x.Token).raw(stands)
		ask.raw(" ON DUPLICATE KEY UPDATE ends=VALUES(ends),data=VALUES(data)").done()
	}
	const ends = "attempt=0,since=0,ends=0,once=0,fingerprint=x'',owner=x'',token=x''"
	for lasts, g := range keeps {
		ask.raw(s.names.sql("UPDATE @key FORCE INDEX (PRIMARY) SET rec_token=token,rec_written=@N,rec_ends=@N+")).int(lasts)
		ask.raw(",rec_fingerprint=fingerprint,"+ends).those(g.keys, g.tokens).raw(stands).done()
		ask.raw("SELECT ROW_COUNT()").asks(count)
	}
	if len(releases.keys) > 0 {
		ask.raw(s.names.sql("UPDATE @key FORCE INDEX (PRIMARY) SET "+ends)).those(releases.keys, releases.tokens).raw(stands).done()
		ask.raw("SELECT ROW_COUNT()").asks(count)
	}
	ask.raw("COMMIT").done()
	if err := use(ctx, s.back, func(c session) error { return c.run(ctx, ask) }); err != nil {
		return nil, nil, err
	}
	var unseen []int
	for _, i := range mine {
		x := &settlements[i]
		p := found[keys(i)]
		switch {
		case p == nil:
			errs[i] = dibs.ErrLost
			unseen = append(unseen, i)
		case p.busy, p.permits > 1, p.holder.token == x.Token && p.holder.ends <= now:
			rest = append(rest, i)
			deep[keys(i)] = p.deep()
		case p.holder.token == x.Token:
			errs[i] = nil
			known++
		case x.Outcome == dibs.Keep && p.record.token == x.Token && p.record.ends > now: // sent twice
			errs[i] = nil
		default:
			errs[i] = dibs.ErrLost
		}
	}
	// A claim that was still under way may have taken its key, which had no row to be
	// locked, after it was looked at, so that the settlement of its token ended it.
	switch ended - known {
	case 0:
	case int64(len(unseen)):
		for _, i := range unseen {
			errs[i] = nil
		}
	default:
		return nil, nil, errOvertaken
	}
	return rest, deep, nil
}

// errOvertaken: some of several settlements ended a lease that was taken while they were
// under way. Which ones is not known.
var errOvertaken = errors.New("mysqlstore: claims and their settlements met; settle them again")

// some returns the data, and not nil, which is NULL to the server.
func some(data []byte) []byte {
	if data == nil {
		return []byte{}
	}
	return data
}
