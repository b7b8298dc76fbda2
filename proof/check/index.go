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

// index is a history, sorted by key.
type index struct {
	Options
	keys      []*keyHistory            // by key
	faults    []*history.Event         // of the store and the network
	stale     []*history.Event         // faults of Options.Stale
	halts     map[int][]*history.Event // when a process was killed or paused
	faultsEnd time.Duration            // when the last fault was over; 0 if faults go on
	end       time.Duration
	unknown   int
}

// keyHistory is the history of one key.
type keyHistory struct {
	*index
	key      string
	calls    []*history.Event // of the store
	attempts []*attempt       // by token, in the order of their first call
	grants   []*grant         // by fence
	answered []*grant         // by the time of the first answer
	permits  int              // the most that a lease asked for
	ttl      time.Duration    // the longest that was asked for
	prints   int              // how many fingerprints there are
	forgot   []*history.Event
	tokens   map[string]*attempt
	claims   map[string][]*history.Event // from a reserved place, by its token and by Return

	sections []*history.Event // enter and leave
	effects  []*history.Event
	replies  []*history.Event
}

// attempt is what one token did.
type attempt struct {
	token      string
	calls      []*history.Event
	begin, end time.Duration // of all its calls
	grants     []*grant      // by fence

	// absent is from when the token may have been granted in its absence, because of a call
	// without an answer or a place in the queue; never if it was always present.
	absent time.Duration
	// vague: the token made a claim without an answer, which may be granted at any time later.
	vague bool
	// placed is until when it asked for a place in the queue, and may have got it; -1 if it did
	// not.
	placed time.Duration
	// behind is the highest fence of others that an answer named while it had a place.
	behind uint64
	// settles is when it was settled first, with or without an answer; never if it was not.
	settles time.Duration
	// doubt is from when a settlement without an answer may have ended its lease.
	doubt time.Duration
	// extra is by how much, at most, renewals and claims without an answer may have prolonged
	// its lease. short is the shortest TTL that one of them may have set.
	extra, short time.Duration
	// kept is its settlements with a record, without those that were answered ErrLost.
	kept []*history.Event
}

// grant is one lease: a token and a fence, with all answers that name it.
type grant struct {
	of       *attempt
	fence    uint64
	number   int              // as in Answer.Attempt
	answers  []*history.Event // by Return
	from, by time.Duration    // when it was made
	index    int              // in keyHistory.grants
}

// place returns the token of the reserved place from which the lease was claimed, or "".
func (g *grant) place() string {
	for _, e := range g.answers {
		if e.From != "" {
			return e.From
		}
	}
	return ""
}

// came returns when the place of a grant can have been taken at the earliest: that of its token,
// or the reserved one; -1 if it is unknown.
func (b *keyHistory) came(g *grant) time.Duration {
	place := g.place()
	if place == "" {
		return g.of.begin
	}
	if a := b.tokens[place]; a != nil {
		return min(g.of.begin, a.begin)
	}
	return -1
}

// head is the first answer.
func (g *grant) head() *history.Event { return g.answers[0] }

// permits returns how many permits the lease sees, and how many it takes.
func (g *grant) permits() (permits, weight int) {
	e := g.head()
	if e.Kind == history.Renew || e.Kind == history.Settle { // the grant was not answered
		e = g.of.calls[0]
	}
	return cmp.Or(e.Permits, 1), cmp.Or(e.Weight, 1)
}

// waiting reports whether the answer says that the token waits at a place.
func waiting(e *history.Event) bool {
	return e.Kind == history.Claim && e.State == "held" && e.Queued && e.Error == "" &&
		(e.Mode == "queue" || e.Mode == "try" && e.From == "")
}

func newIndex(events []history.Event, o Options) *index {
	l := &index{Options: o, halts: map[int][]*history.Event{}}
	keys := map[string]*keyHistory{}
	of := func(key string) *keyHistory {
		b := keys[key]
		if b == nil {
			b = &keyHistory{index: l, key: key, permits: 1}
			keys[key] = b
		}
		return b
	}
	var forgot []*history.Event
	for i := range events {
		e := &events[i]
		l.end = max(l.end, e.Call, e.Return)
		switch e.Kind {
		case history.Claim, history.Renew, history.Settle, history.Pushed:
			b := of(e.Key)
			b.calls = append(b.calls, e)
			if !e.Answered() {
				l.unknown++
			}
		case history.Enter, history.Leave:
			of(e.Key).sections = append(of(e.Key).sections, e)
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
				if slices.Contains(o.Stale, e.Name) {
					l.stale = append(l.stale, e)
				}
				if o.forgets(e.Name, false) {
					forgot = append(forgot, e)
				}
			case o.forgets(e.Name, true):
				of(e.Key).forgot = append(of(e.Key).forgot, e)
			}
		case history.FaultsEnd:
			l.faultsEnd = max(l.faultsEnd, e.Call)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		b := keys[key]
		b.forgot = append(b.forgot, forgot...)
		slices.SortFunc(b.forgot, byCall)
		b.enter()
		l.keys = append(l.keys, b)
	}
	return l
}

func byCall(a, b *history.Event) int { return cmp.Compare(a.Call, b.Call) }

// enter sorts the calls of a key by token and finds the grants.
func (b *keyHistory) enter() {
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
			a = &attempt{token: e.Token, begin: e.Call, absent: never, placed: -1, settles: never, doubt: never, short: never}
			if e.Mode != "look" { // it changes nothing
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
	b.answered = slices.SortedFunc(slices.Values(b.grants), func(a, b *grant) int { return cmp.Compare(a.by, b.by) })
}

// answeredBy returns how many grants were answered before a moment. They are the first ones of
// keyHistory.answered.
func (b *keyHistory) answeredBy(t time.Duration) int {
	n, _ := slices.BinarySearchFunc(b.answered, t, func(g *grant, t time.Duration) int { return cmp.Compare(g.by, t) })
	return n
}

func byFence(a, b *grant) int { return cmp.Or(cmp.Compare(a.fence, b.fence), cmp.Compare(a.by, b.by)) }

// enter adds a call to what is known of the token.
func (a *attempt) enter(b *keyHistory, e *history.Event) {
	alone := e.Answered() && e.Error != "" && e.Error != history.Lost // it failed alone, with nothing done
	switch e.Kind {
	case history.Pushed:
		a.granted(e)
		a.absent = min(a.absent, e.Call)
	case history.Claim:
		if e.Mode == "look" || alone {
			return
		}
		b.ttl = max(b.ttl, e.TTL)
		queues := e.Mode == "queue" || e.Mode == "reserve"
		switch {
		case !e.Answered():
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
			a.placed, a.absent, a.behind = max(a.placed, e.Return), min(a.absent, e.Call), max(a.behind, e.Fence)
		}
	case history.Renew:
		if !e.Answered() {
			a.extra = after(a.extra, e.TTL)
			a.short = min(a.short, e.TTL)
		}
	case history.Settle:
		a.settles = min(a.settles, e.Call)
		if !e.Answered() {
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

// waits reports whether the token may have a place after its last grant. A place ends with its
// grant, but a claim that was under way when the grant was given up may have got a new place. A pushed
// grant may be heard of after the answer about the place that came after it, which names a later fence.
func (a *attempt) waits() bool {
	if a.placed < 0 || len(a.grants) == 0 {
		return a.placed >= 0
	}
	last := a.grants[len(a.grants)-1]
	return a.placed >= last.by || a.placed >= a.settles || a.behind > last.fence
}

// anonymous reports whether a call was made without a token.
func anonymous(e *history.Event) bool { return strings.Trim(e.Token, "0") == "" }

// complete finds out when the grant was made.
func (g *grant) complete() {
	slices.SortStableFunc(g.answers, func(a, b *history.Event) int { return cmp.Compare(a.Return, b.Return) })
	g.number, g.by = g.head().Attempt, g.head().Return
	g.from = g.of.absent
	for _, e := range g.answers {
		g.from = min(g.from, e.Call)
	}
}

// certain returns when the lease ended at the earliest, if nothing unknown or forgotten ended
// it before. Every answer and renewal proves that it lasted until then without a gap. A
// renewal does not if a claim was not answered, because it may be of that claim's grant.
func (g *grant) certain(slack time.Duration) time.Duration {
	until := time.Duration(0)
	for _, e := range g.answers {
		end := e.Call // of a pushed grant, whose PushedTTL began at an unknown moment
		if e.Kind != history.Pushed {
			end = after(e.Call, min(e.TTL, g.of.short))
		}
		until = max(until, end)
	}
	if len(g.of.grants) == 1 && !g.of.vague {
		for _, e := range g.of.calls {
			if e.Kind == history.Renew && e.Answered() && e.Error == "" {
				until = max(until, after(e.Call, min(e.TTL, g.of.short)))
			}
		}
	}
	return min(until-slack, g.of.doubt)
}

// latest returns until when the lease may stand; never if it is unknown.
func (g *grant) latest(slack time.Duration) time.Duration {
	if g.of.vague {
		return never
	}
	until := time.Duration(0)
	for _, e := range g.answers {
		until = max(until, after(e.Return, e.TTL))
	}
	for _, e := range g.of.calls {
		if e.Kind == history.Renew && e.Answered() && e.Error == "" {
			until = max(until, after(e.Return, e.TTL))
		}
	}
	return after(after(until, g.of.extra), slack)
}

// forgotBetween reports whether the store may have lost data between two moments.
func (b *keyHistory) forgotBetween(from, to time.Duration) bool {
	return slices.ContainsFunc(b.forgot, func(f *history.Event) bool { return f.Call <= to && until(f) >= from })
}

// until is when an event was over; never if its end is unknown.
func until(e *history.Event) time.Duration {
	if !e.Answered() {
		return never
	}
	return e.Return
}

// haltedBetween reports whether a process was killed or stopped between two moments.
func (l *index) haltedBetween(process int, from, to time.Duration) bool {
	return slices.ContainsFunc(l.halts[process], func(h *history.Event) bool { return h.Call <= to && until(h) >= from })
}

// staleBetween reports whether an answer between two moments may come from an older state.
func (l *index) staleBetween(from, to time.Duration) bool {
	return slices.ContainsFunc(l.stale, func(f *history.Event) bool { return f.Call <= to && until(f) >= from })
}

// faultBetween reports whether a fault struck between two moments, or shortly before.
func (l *index) faultBetween(from, to time.Duration) bool {
	return slices.ContainsFunc(l.faults, func(f *history.Event) bool {
		return f.Call <= to && after(until(f), l.Settling) >= from
	})
}
