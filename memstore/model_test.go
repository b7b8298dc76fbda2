package memstore_test

import (
	"cmp"
	"slices"
	"time"

	"github.com/dibs-go/dibs"
)

// model is one key of the simplest store there could be: plain slices, looked
// through each time. Permits of a key never vary here, and a fence is not
// predicted but must rise.
type model struct {
	permits   int
	seq       int
	leases    []mlease
	queue     []mplace
	gone      *mlease
	abandoned int
	record    *mrecord
	looks     bool // it is a copy, for a Look to try on
}

type mlease struct {
	c        dibs.Claim
	attempt  int
	ends     time.Time
	offered  bool
	progress []byte
	heritage []byte
	told     *mlease // whom heritage is from
	seq      int     // of the place it had
	from     *mplace // which it took, and may have to give back
}

type mplace struct {
	c    dibs.Claim
	seq  int
	ends time.Time

	pressed bool // its Hold is being counted
}

type mrecord struct {
	by            dibs.Claim
	data          string
	written, ends time.Time
}

// pass lets time pass up to now, one event after the other.
func (m *model) pass(now time.Time) {
	for {
		at := now.Add(1)
		for _, l := range m.leases {
			if l.ends.Before(at) {
				at = l.ends
			}
		}
		for _, p := range m.queue {
			if p.ends.Before(at) {
				at = p.ends
			}
		}
		if at.After(now) {
			break
		}
		m.queue = slices.DeleteFunc(m.queue, func(p mplace) bool { return !p.ends.After(at) })
		for i := 0; i < len(m.leases); i++ {
			if l := m.leases[i]; !l.ends.After(at) {
				m.leases = slices.Delete(m.leases, i, i+1)
				i--
				if !l.offered {
					m.back(l, l.ends)
					m.abandon(l)
				}
			}
		}
		m.offer(at)
	}
	if m.record != nil && !m.record.ends.After(now) {
		m.record = nil
	}
	if m.gone != nil && !m.unknown() && !m.gone.ends.Add(dibs.AbandonedMemory).After(now) {
		m.clean()
	}
}

func (m *model) abandon(l mlease) {
	m.abandoned++
	if l.progress == nil {
		l.progress = l.heritage
	}
	m.gone = &l
}

// back puts a place that a lease had taken back, in its order.
func (m *model) back(l mlease, at time.Time) {
	if l.from == nil {
		return
	}
	p := *l.from
	p.ends, p.pressed = at.Add(p.c.Place), false
	m.queue = append(m.queue, p)
	slices.SortFunc(m.queue, func(p, q mplace) int { return p.seq - q.seq })
}

// taken returns the lease that has the token's place.
func (m *model) taken(t dibs.Token) *mlease {
	for i := range m.leases {
		if p := m.leases[i].from; p != nil && p.c.Token == t {
			return &m.leases[i]
		}
	}
	return nil
}

func (m *model) clean()        { m.abandoned, m.gone = 0, nil }
func (m *model) unknown() bool { return m.gone != nil && m.gone.c.AtMostOnce }

func (m *model) offer(at time.Time) {
	for !m.unknown() && len(m.leases) < m.permits && len(m.queue) > 0 {
		p := m.queue[0]
		if p.c.Mode == dibs.Reserve {
			return
		}
		m.queue = m.queue[1:]
		if m.gone != nil && m.gone.c.Fingerprint.Differs(p.c.Fingerprint) {
			continue
		}
		p.c.TTL = dibs.Turn
		l := m.grant(p.c, at)
		l.offered, l.seq = true, p.seq
	}
}

func (m *model) grant(c dibs.Claim, at time.Time) *mlease {
	l := mlease{c: c, attempt: m.abandoned + 1, ends: at.Add(c.TTL)}
	if m.gone != nil {
		l.heritage = m.gone.progress
	}
	m.leases = append(m.leases, l)
	return &m.leases[len(m.leases)-1]
}

// take grants to one who asks.
func (m *model) take(c dibs.Claim, from *mplace, now time.Time) dibs.Answer {
	l := m.grant(c, now)
	l.from, l.told, m.gone = from, m.gone, nil
	a := dibs.Answer{State: dibs.Granted, Attempt: l.attempt, Progress: l.heritage}
	m.offer(now)
	return a
}

func (m *model) lease(t dibs.Token) *mlease {
	for i := range m.leases {
		if m.leases[i].c.Token == t {
			return &m.leases[i]
		}
	}
	return nil
}

func (m *model) place(t dibs.Token) int {
	return slices.IndexFunc(m.queue, func(p mplace) bool { return p.c.Token == t })
}

func (m *model) leave(t dibs.Token, now time.Time) bool {
	i := m.place(t)
	if i >= 0 {
		m.queue = slices.Delete(m.queue, i, i+1)
		m.offer(now)
	}
	return i >= 0
}

// claim returns what the store should answer, except for Fence.
func (m *model) claim(c dibs.Claim, now time.Time) dibs.Answer {
	m.pass(now)
	if c.Mode == dibs.Look {
		try := *m
		try.looks = true
		try.leases, try.queue = slices.Clone(m.leases), slices.Clone(m.queue)
		c.Mode = dibs.Try
		a := try.claim(c, now)
		if a.State == dibs.Granted {
			a = dibs.Answer{State: dibs.Free}
		}
		return a
	}
	if l := m.lease(c.Token); l != nil {
		return m.again(l, c, now)
	}
	accepted := m.record != nil && c.MaxAge > 0 && now.Sub(m.record.written) <= c.MaxAge
	differs := accepted && m.record.by.Fingerprint.Differs(c.Fingerprint) ||
		m.gone != nil && m.gone.c.Fingerprint.Differs(c.Fingerprint) ||
		slices.ContainsFunc(m.leases, func(l mlease) bool { return l.c.Fingerprint.Differs(c.Fingerprint) })
	switch {
	case differs:
		m.answered(c, now)
		return dibs.Answer{State: dibs.Mismatch}
	case accepted:
		m.answered(c, now)
		return dibs.Answer{State: dibs.Done, Record: dibs.Record{
			Data: []byte(m.record.data), Age: now.Sub(m.record.written), Left: m.record.ends.Sub(now),
		}}
	case m.unknown():
		return dibs.Answer{State: dibs.Unknown, ID: m.gone.c.Token.ID()}
	}
	return m.wait(c, now)
}

// answered drops the places of one who has its answer.
func (m *model) answered(c dibs.Claim, now time.Time) {
	m.queue = slices.DeleteFunc(m.queue, func(p mplace) bool {
		return p.c.Token == c.Token || p.c.Token == c.Redeems && p.c.Mode == dibs.Reserve
	})
	m.offer(now)
}

func (m *model) again(l *mlease, c dibs.Claim, now time.Time) dibs.Answer {
	switch {
	case c.Mode != dibs.Reserve:
		l.ends = now.Add(c.TTL)
		if l.offered {
			l.c, l.offered = c, false
			l.told, m.gone = m.gone, nil
		}
	case l.offered:
		p := mplace{c: c, seq: l.seq, ends: now.Add(c.Place)}
		ahead := 0
		for ahead < len(m.queue) && m.queue[ahead].seq < p.seq {
			ahead++
		}
		m.leases = slices.DeleteFunc(m.leases, func(l mlease) bool { return l.c.Token == c.Token })
		m.queue = slices.Insert(m.queue, ahead, p)
		return m.held(ahead, c, true, now)
	}
	return dibs.Answer{State: dibs.Granted, Attempt: l.attempt, Progress: l.heritage}
}

func (m *model) wait(c dibs.Claim, now time.Time) dibs.Answer {
	if l := m.taken(c.Redeems); l != nil {
		return m.behind(l, now)
	}
	if i := m.place(c.Redeems); i >= 0 && m.queue[i].c.Mode == dibs.Reserve {
		if i > 0 || len(m.leases) == m.permits {
			return m.held(i, c, true, now)
		}
		p := m.queue[0]
		p.c.Hold = cmp.Or(c.Hold, p.c.Hold)
		m.queue = slices.DeleteFunc(m.queue[1:], func(p mplace) bool { return p.c.Token == c.Token })
		if l := m.taken(c.Token); l != nil {
			l.from = nil
		}
		return m.take(c, &p, now)
	}
	if l := m.taken(c.Token); l != nil {
		if c.Place > 0 && c.Redeems.IsZero() {
			p := *l.from
			p.c.Place = c.Place
			if c.Mode == dibs.Reserve {
				p.c.Hold = c.Hold
			}
			l.from = &p
		}
		return m.behind(l, now)
	}
	i := m.place(c.Token)
	ahead := i
	if i < 0 {
		ahead = len(m.queue)
	}
	if c.Mode != dibs.Reserve && ahead == 0 && len(m.leases) < m.permits {
		m.queue = m.queue[i+1:]
		return m.take(c, nil, now)
	}
	switch {
	case i < 0 && c.Mode == dibs.Try:
		// It has none, and gets none.
	case i < 0:
		m.seq++
		m.queue = append(m.queue, mplace{c: c, seq: m.seq, ends: now.Add(c.Place)})
	case c.Mode == dibs.Try && c.Place > 0 && c.Redeems.IsZero():
		m.queue[i].c.Place, m.queue[i].ends, m.queue[i].pressed = c.Place, now.Add(c.Place), false
	case c.Mode != dibs.Try:
		m.queue[i] = mplace{c: c, seq: m.queue[i].seq, ends: now.Add(c.Place)}
	}
	return m.held(ahead, c, i >= 0 || c.Mode != dibs.Try, now)
}

// held answers a claim with so many places before it, and has the first of them
// run out after its Hold if it is what is in the way.
func (m *model) held(ahead int, c dibs.Claim, queued bool, now time.Time) dibs.Answer {
	if c.Mode != dibs.Reserve && !m.looks && ahead > 0 && len(m.leases) < m.permits {
		p := &m.queue[0]
		if p.c.Mode == dibs.Reserve && p.c.Hold > 0 && !p.pressed {
			p.pressed = true
			if ends := now.Add(p.c.Hold); ends.Before(p.ends) {
				p.ends = ends
			}
		}
	}
	return dibs.Answer{
		State: dibs.Held, Ahead: ahead, Queued: queued, Left: m.left(ahead, now),
		Idle: ahead > 0 && len(m.leases) < m.permits && m.queue[0].c.Mode == dibs.Reserve,
	}
}

// left returns when the first lease or one of the first so many places ends, or
// the next one when there is none of them.
func (m *model) left(ahead int, now time.Time) time.Duration {
	var ends []time.Time
	for _, l := range m.leases {
		ends = append(ends, l.ends)
	}
	for _, p := range m.queue[:ahead] {
		ends = append(ends, p.ends)
	}
	if len(ends) == 0 {
		ends = append(ends, m.queue[0].ends)
	}
	return slices.MinFunc(ends, time.Time.Compare).Sub(now)
}

// behind answers one whose place a lease has.
func (m *model) behind(l *mlease, now time.Time) dibs.Answer {
	ahead := 0
	for ahead < len(m.queue) && m.queue[ahead].seq < l.from.seq {
		ahead++
	}
	return dibs.Answer{State: dibs.Held, Ahead: ahead, Queued: true, Left: m.left(ahead, now)}
}

func (m *model) renew(r dibs.Renewal, now time.Time) error {
	m.pass(now)
	l := m.lease(r.Token)
	if l == nil || l.offered {
		return dibs.ErrLost
	}
	l.ends = now.Add(r.TTL)
	if r.Progress != nil {
		l.progress = r.Progress
	}
	return nil
}

func (m *model) settle(x dibs.Settlement, now time.Time) error {
	m.pass(now)
	l := m.lease(x.Token)
	if x.Outcome == dibs.Keep && (l == nil || l.offered) {
		if m.record != nil && m.record.by.Token == x.Token {
			return nil
		}
		return dibs.ErrLost
	}
	if l == nil {
		if l := m.taken(x.Token); l != nil {
			l.from = nil
			return nil
		}
		if !m.leave(x.Token, now) {
			return dibs.ErrLost
		}
		return nil
	}
	ended := *l
	m.leases = slices.DeleteFunc(m.leases, func(l mlease) bool { return l.c.Token == x.Token })
	switch {
	case ended.offered:
	case x.Outcome == dibs.Abandon:
		ended.ends = now
		m.back(ended, now)
		m.abandon(ended)
	case x.Outcome == dibs.Undo:
		m.back(ended, now)
		if m.gone == nil && m.abandoned > 0 {
			m.gone = ended.told
		}
	default:
		m.clean()
	}
	if x.Outcome == dibs.Keep {
		m.keep(ended.c, x.Data, x.Retention, now)
	}
	m.offer(now)
	return nil
}

func (m *model) keep(by dibs.Claim, data []byte, retention time.Duration, now time.Time) {
	m.record = &mrecord{by, string(data), now, now.Add(retention)}
	m.queue = slices.DeleteFunc(m.queue, func(p mplace) bool { return p.c.MaxAge > 0 })
}

func (m *model) evict(id string, now time.Time) int {
	m.pass(now)
	n := len(m.leases)
	m.leases = slices.DeleteFunc(m.leases, func(l mlease) bool { return id == "" || l.c.Token.ID() == id })
	n -= len(m.leases)
	if m.gone != nil && (id == "" || m.gone.c.Token.ID() == id) {
		n++
	}
	if n > 0 {
		m.clean()
		m.offer(now)
	}
	return n
}

func (m *model) forget(now time.Time) bool {
	m.pass(now)
	if m.record == nil && m.gone == nil {
		return false
	}
	m.record = nil
	m.clean()
	m.offer(now)
	return true
}

func (m *model) resolve(id string, data []byte, retention time.Duration, now time.Time) bool {
	m.pass(now)
	if !m.unknown() || id != "" && id != m.gone.c.Token.ID() {
		return false
	}
	by := m.gone.c
	m.clean()
	m.keep(by, data, retention, now)
	m.offer(now)
	return true
}
