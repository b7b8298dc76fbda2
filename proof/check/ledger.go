package check

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs/proof/history"
)

// never is later than every moment of a run.
const never = time.Duration(math.MaxInt64)

// after returns the moment d after t, or never.
func after(t, d time.Duration) time.Duration {
	if d > never-t {
		return never
	}
	return t + d
}

// ledger is a history, sorted by what it is about.
type ledger struct {
	Options
	books   []*book                  // by key
	faults  []*history.Event         // of the store, and of the way to it
	halts   map[int][]*history.Event // when a process was killed or stood still
	calm    time.Duration            // from when on there is no fault; 0: not at all
	end     time.Duration
	unheard int
}

// book is all that concerns one key.
type book struct {
	*ledger
	key      string
	calls    []*history.Event // of the store
	attempts []*attempt       // by token, in the order of their first call
	grants   []*grant         // by fence
	heard    []*grant         // by when they were heard of
	permits  int              // the most that a lease saw
	ttl      time.Duration    // the longest that was asked for
	prints   int              // how many fingerprints there are
	forgot   []*history.Event
	tokens   map[string]*attempt
	claims   map[string][]*history.Event // from a reserved place, by its token and by Return

	sections []*history.Event // enter and leave
	writes   []*history.Event
	effects  []*history.Event
	replies  []*history.Event
}

// attempt is what one token did.
type attempt struct {
	token      string
	calls      []*history.Event
	begin, end time.Duration // of all its calls
	grants     []*grant      // by fence

	// from when on it may have been granted in its absence, because a call that nobody
	// heard the answer of, or a place in the queue, stood; never: in its presence only.
	absent time.Duration
	// vague: it made a claim that nobody heard the answer of, which may be granted at any
	// time later.
	vague bool
	// placed is until when it asked for, and may have got, a place in the queue; -1: never.
	placed time.Duration
	// queues is when it asked for a place of its own first.
	queues time.Duration
	// settles is when it was settled first, heard or not; never: not at all.
	settles time.Duration
	// doubt is from when on a settlement that nobody heard the answer of may have ended
	// what it had.
	doubt time.Duration
	// extra is how much longer, at most, renewals and claims that nobody heard the answer
	// of may have made its lease, and short the shortest TTL that one may have set.
	extra, short time.Duration
	// kept is its settlements with a record, but for those that were lost.
	kept []*history.Event
}

// grant is one lease: a token and a fence, however often they were answered.
type grant struct {
	of       *attempt
	fence    uint64
	number   int              // as in Answer.Attempt
	answers  []*history.Event // by Return
	from, by time.Duration    // when it was made
	index    int              // in book.grants
}

// place returns the token of the reserved place that the lease was claimed from, or "".
func (g *grant) place() string {
	for _, e := range g.answers {
		if e.From != "" {
			return e.From
		}
	}
	return ""
}

// came returns when the place can have been taken, at the earliest, at which a grant was
// made: that of its token, or the reserved one that was redeemed; -1 if nobody knows.
func (b *book) came(g *grant) time.Duration {
	place := g.place()
	if place == "" {
		return g.of.begin
	}
	if a := b.tokens[place]; a != nil {
		return min(g.of.begin, a.begin)
	}
	return -1
}

// head is the answer that was heard first.
func (g *grant) head() *history.Event { return g.answers[0] }

// permits returns how many permits the lease sees, and how many of them it takes.
func (g *grant) permits() (permits, weight int) {
	e := g.head()
	if e.Kind == history.Renew || e.Kind == history.Settle { // nobody heard of the grant
		e = g.of.calls[0]
	}
	return cmp.Or(e.Permits, 1), cmp.Or(e.Weight, 1)
}

// waiting reports whether a claim's answer says that its token has a place where it waits.
func waiting(e *history.Event) bool {
	return e.Kind == history.Claim && e.State == "held" && e.Queued && e.Error == "" &&
		(e.Mode == "queue" || e.Mode == "try" && e.From == "")
}

func newLedger(events []history.Event, o Options) *ledger {
	l := &ledger{Options: o, halts: map[int][]*history.Event{}}
	books := map[string]*book{}
	of := func(key string) *book {
		b := books[key]
		if b == nil {
			b = &book{ledger: l, key: key, permits: 1}
			books[key] = b
		}
		return b
	}
	var forgot []*history.Event
	for i := range events {
		e := &events[i]
		l.end = max(l.end, e.Call, e.Return)
		switch e.Kind {
		case history.Claim, history.Renew, history.Settle, history.Told:
			b := of(e.Key)
			b.calls = append(b.calls, e)
			if !e.Heard() {
				l.unheard++
			}
		case history.Enter, history.Leave:
			of(e.Key).sections = append(of(e.Key).sections, e)
		case history.Write:
			of(e.Key).writes = append(of(e.Key).writes, e)
		case history.Effect:
			of(e.Key).effects = append(of(e.Key).effects, e)
		case history.Reply:
			of(e.Key).replies = append(of(e.Key).replies, e)
		case history.Killed, history.Stopped:
			l.halts[e.Process] = append(l.halts[e.Process], e)
		case history.Fault:
			switch {
			case e.Key == "":
				if !slices.Contains(o.Workers, e.Name) {
					l.faults = append(l.faults, e)
				}
				if o.forgets(e.Name, false) {
					forgot = append(forgot, e)
				}
			case o.forgets(e.Name, true):
				of(e.Key).forgot = append(of(e.Key).forgot, e)
			}
		case history.Calm:
			l.calm = max(l.calm, e.Call)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(books)) {
		b := books[key]
		b.forgot = append(b.forgot, forgot...)
		slices.SortFunc(b.forgot, byCall)
		b.enter()
		l.books = append(l.books, b)
	}
	return l
}

func byCall(a, b *history.Event) int { return cmp.Compare(a.Call, b.Call) }

// enter sorts the calls of a key by token and finds the grants.
func (b *book) enter() {
	b.tokens = map[string]*attempt{}
	prints := map[string]bool{}
	for _, e := range b.calls {
		if e.Fingerprint != "" {
			prints[e.Fingerprint] = true
		}
		if e.From != "" {
			if b.claims == nil {
				b.claims = map[string][]*history.Event{}
			}
			b.claims[e.From] = append(b.claims[e.From], e)
		}
		a := b.tokens[e.Token]
		if a == nil || e.Mode == "look" {
			a = &attempt{token: e.Token, begin: e.Call, absent: never, placed: -1, queues: never, settles: never, doubt: never, short: never}
			if e.Mode != "look" { // which is nobody's, and changes nothing
				b.tokens[e.Token] = a
			}
			b.attempts = append(b.attempts, a)
		}
		a.begin, a.end = min(a.begin, e.Call), max(a.end, e.Call, e.Return)
		a.calls = append(a.calls, e)
		a.enter(b, e)
	}
	for _, from := range b.claims {
		slices.SortStableFunc(from, func(a, b *history.Event) int { return cmp.Compare(until(a), until(b)) })
	}
	b.prints = len(prints)
	for _, a := range b.attempts {
		for _, g := range a.grants {
			g.complete()
		}
		slices.SortFunc(a.grants, byFence)
		b.grants = append(b.grants, a.grants...)
	}
	slices.SortStableFunc(b.grants, byFence)
	for i, g := range b.grants {
		g.index = i
	}
	b.heard = slices.SortedFunc(slices.Values(b.grants), func(a, b *grant) int { return cmp.Compare(a.by, b.by) })
}

// heardBy returns how many grants were heard of before a moment: the first of book.heard.
func (b *book) heardBy(t time.Duration) int {
	n, _ := slices.BinarySearchFunc(b.heard, t, func(g *grant, t time.Duration) int { return cmp.Compare(g.by, t) })
	return n
}

func byFence(a, b *grant) int { return cmp.Or(cmp.Compare(a.fence, b.fence), cmp.Compare(a.by, b.by)) }

// enter adds a call to what is known of the token.
func (a *attempt) enter(b *book, e *history.Event) {
	alone := e.Heard() && e.Error != "" && e.Error != history.Lost // it failed alone: nothing was done
	switch e.Kind {
	case history.Told:
		a.granted(e)
		a.absent = min(a.absent, e.Call)
	case history.Claim:
		if e.Mode == "look" || alone {
			return
		}
		b.ttl = max(b.ttl, e.TTL)
		queues := e.Mode == "queue" || e.Mode == "reserve"
		if queues {
			a.queues = min(a.queues, e.Call)
		}
		switch {
		case !e.Heard():
			a.vague, a.absent = true, min(a.absent, e.Call)
			if queues {
				a.placed = never
			}
			if e.TTL > 0 { // it may prolong a lease that it has
				a.extra = after(a.extra, e.TTL)
				a.short = min(a.short, e.TTL)
			}
		case e.State == "granted":
			a.granted(e)
			b.permits = max(b.permits, e.Permits)
		case waiting(e) || e.Mode == "reserve" && e.State == "held":
			a.placed, a.absent = max(a.placed, e.Return), min(a.absent, e.Call)
		}
	case history.Renew:
		if !e.Heard() {
			a.extra = after(a.extra, e.TTL)
			a.short = min(a.short, e.TTL)
		}
	case history.Settle:
		a.settles = min(a.settles, e.Call)
		if !e.Heard() {
			a.doubt = min(a.doubt, e.Call)
		}
		if e.Outcome == "keep" && !alone && e.Error != history.Lost {
			a.kept = append(a.kept, e)
		}
	}
}

func (a *attempt) granted(e *history.Event) {
	for _, g := range a.grants {
		if g.fence == e.Fence {
			g.answers = append(g.answers, e)
			return
		}
	}
	a.grants = append(a.grants, &grant{of: a, fence: e.Fence, answers: []*history.Event{e}})
}

// waits reports whether the token may have a place although it was granted what it was:
// a place ends with the grant. A claim that was under way as the grant was given up may have
// got a new one, and the grant may be told after that.
func (a *attempt) waits() bool {
	return a.placed >= 0 && (len(a.grants) == 0 || a.placed >= a.grants[len(a.grants)-1].by || a.placed >= a.settles)
}

// anonymous reports whether a call was made without a token.
func anonymous(e *history.Event) bool { return strings.Trim(e.Token, "0") == "" }

// complete works out when the grant was made.
func (g *grant) complete() {
	slices.SortStableFunc(g.answers, func(a, b *history.Event) int { return cmp.Compare(a.Return, b.Return) })
	g.number, g.by = g.head().Attempt, g.head().Return
	g.from = g.of.absent
	for _, e := range g.answers {
		g.from = min(g.from, e.Call)
	}
}

// certain returns until when the lease lasts for certain, if nothing unknown or forgotten
// cuts it short: every answer and renewal proves that it lasted until then without a gap.
func (g *grant) certain(slack time.Duration) time.Duration {
	until := time.Duration(0)
	for _, e := range g.answers {
		end := e.Call // of one that was told, whose PushedTTL began at an unknown moment
		if e.Kind != history.Told {
			end = after(e.Call, min(e.TTL, g.of.short))
		}
		until = max(until, end)
	}
	if len(g.of.grants) == 1 {
		for _, e := range g.of.calls {
			if e.Kind == history.Renew && e.Heard() && e.Error == "" {
				until = max(until, after(e.Call, min(e.TTL, g.of.short)))
			}
		}
	}
	return min(until-slack, g.of.doubt)
}

// latest returns until when the lease may last, or never if nobody can say.
func (g *grant) latest(slack time.Duration) time.Duration {
	if g.of.vague {
		return never
	}
	until := time.Duration(0)
	for _, e := range g.answers {
		until = max(until, after(e.Return, e.TTL))
	}
	for _, e := range g.of.calls {
		if e.Kind == history.Renew && e.Heard() && e.Error == "" {
			until = max(until, after(e.Return, e.TTL))
		}
	}
	return after(after(until, g.of.extra), slack)
}

// forgotBetween reports whether the store may have lost data between two moments.
func (b *book) forgotBetween(from, to time.Duration) bool {
	return slices.ContainsFunc(b.forgot, func(f *history.Event) bool { return f.Call <= to && until(f) >= from })
}

// until is when something was over; never if nobody saw it end, or heard how.
func until(e *history.Event) time.Duration {
	if !e.Heard() {
		return never
	}
	return e.Return
}

// haltedBetween reports whether a process was killed or stood still between two moments.
func (l *ledger) haltedBetween(process int, from, to time.Duration) bool {
	return slices.ContainsFunc(l.halts[process], func(h *history.Event) bool { return h.Call <= to && until(h) >= from })
}

// faultBetween reports whether there was any fault between two moments, or shortly before.
func (l *ledger) faultBetween(from, to time.Duration) bool {
	return slices.ContainsFunc(l.faults, func(f *history.Event) bool {
		return f.Call <= to && after(until(f), l.Settling) >= from
	})
}
