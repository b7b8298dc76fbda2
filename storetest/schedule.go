package storetest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/storetest/internal/model"
)

var scheduleProperties = []Property{
	{
		Name:  "RandomSchedules",
		Why:   "What nobody thought of: some callers in some processes claim, renew and settle a key in random order, and after each step the store must say what the simplest correct store says.",
		Heavy: true,
		Check: func(t *Trial) {
			seed := t.h.Seed
			if seed == 0 {
				seed = rand.Uint64()
			}
			procs := []*process{t.process(), t.process(), t.process()}
			const schedules, steps = 40, 60
			for n := range schedules {
				s := newSchedule(t, procs, seed, n)
				for range steps {
					s.step()
				}
			}
			t.Logf("seed %d", seed)
		},
	},
}

// schedule is a random run of operations on one key, made both on the store
// and on a model. It keeps to what the contract settles: where two answers are
// right, the operation is not made.
type schedule struct {
	t     *Trial
	rnd   *rand.Rand
	procs []*process
	model *process
	key   dibs.Key
	log   []string

	permits int
	actors  []*actor
	jobs    []*actor // whose places the actors claim from
	// fences has the store's fence of each grant, by the model's.
	fences map[uint64]uint64
	last   uint64
}

// actor is one caller with one token at a time. What it asks for it asks for
// throughout, as a real one does.
type actor struct {
	name       string
	token      dibs.Token
	maxAge     time.Duration
	print      dibs.Fingerprint
	atMostOnce bool
	reserves   bool // and redeems later, by itself
	redeemed   bool
	works      bool             // claims from the jobs' places
	kept       *dibs.Settlement // sent already; may be sent again
}

func newSchedule(t *Trial, procs []*process, seed uint64, n int) *schedule {
	s := &schedule{
		t: t, rnd: rand.New(rand.NewPCG(seed, uint64(n))), procs: procs,
		model: &process{t: t, store: model.New(model.None, t.turn).Open()},
		key:   key("schedule " + itoa(n)), permits: 1, fences: map[uint64]uint64{},
	}
	s.log = append(s.log, fmt.Sprintf("seed %d, schedule %d", seed, n))
	flavour := s.rnd.IntN(3)
	if flavour == 2 {
		s.permits = 2 + s.rnd.IntN(2)
	}
	for i := range 6 {
		a := &actor{name: string(rune('a' + i)), token: s.token()}
		switch flavour {
		case 0: // an idempotency key
			a.maxAge, a.print = dibs.AnyAge, printOf("this")
			a.atMostOnce = n%2 == 0
			if i == 5 {
				a.print = printOf("that")
			}
		case 1: // a lock, with some who look at the record first
			if i >= 4 {
				a.maxAge = dibs.AnyAge
			}
			a.reserves = i < 2
		case 2: // a semaphore
			a.reserves = i < 2
		}
		a.works = !a.reserves && s.rnd.IntN(2) == 0
		s.actors = append(s.actors, a)
	}
	for i := range s.rnd.IntN(4) {
		job := *s.actors[2+i]
		job.name, job.token, job.atMostOnce = "job "+itoa(i), s.token(), false
		s.jobs = append(s.jobs, &job)
	}
	return s
}

// token returns a token that depends on the seed alone.
func (s *schedule) token() dibs.Token {
	var t dibs.Token
	for i := range t {
		t[i] = byte(s.rnd.Uint32())
	}
	return t
}

// step makes one random operation and compares the answers.
func (s *schedule) step() {
	s.t.Helper()
	p := s.procs[s.rnd.IntN(len(s.procs))]
	if len(s.jobs) > 0 && s.rnd.IntN(4) == 0 {
		s.jobStep(p, s.jobs[s.rnd.IntN(len(s.jobs))])
		return
	}
	a := s.actors[s.rnd.IntN(len(s.actors))]
	holds, offered := s.holds(a)
	waits := s.waits(a)
	switch op := s.rnd.IntN(10); {
	case a.kept != nil:
		// To keep something of a key that has been offered meanwhile, two answers are right.
		if !offered || a.kept.Outcome != dibs.Keep {
			s.settle(p, a, *a.kept)
		}
		a.kept = nil
		a.token, a.redeemed = s.token(), false
	case op < 5:
		s.claim(p, a, holds)
	case op < 7 && !offered:
		s.renew(p, a)
	case op >= 7:
		x := dibs.Settlement{Key: s.key, Token: a.token}
		if x.Outcome = dibs.Outcome(s.rnd.IntN(4)); x.Outcome == dibs.Keep && (offered || waits) {
			x.Outcome = dibs.Release
		}
		if x.Outcome == dibs.Keep {
			x.Data, x.Retention = []byte("by "+a.token.ID()), long
		}
		s.settle(p, a, x)
		a.kept = &x
		if s.rnd.IntN(2) == 0 {
			a.kept = nil
			a.token, a.redeemed = s.token(), false
		}
	}
}

// jobStep makes one random operation with the token of a job's place.
func (s *schedule) jobStep(p *process, job *actor) {
	s.t.Helper()
	holds, _ := s.holds(job)
	switch n := s.rnd.IntN(8); {
	case n < 5 && !holds:
		c := s.ask(job)
		switch {
		case n > 0:
			c.Mode, c.Hold = dibs.Reserve, s.hold()
		case s.rnd.IntN(2) == 0:
			c.Place = 0
		}
		s.compare(p, job, c)
	case n == 5 && s.rnd.IntN(2) == 0:
		c := s.ask(job)
		c.Mode = dibs.Queue
		s.compare(p, job, c)
	default:
		outcomes := []dibs.Outcome{dibs.Release, dibs.Abandon, dibs.Undo}
		s.settle(p, job, dibs.Settlement{Key: s.key, Token: job.token, Outcome: outcomes[s.rnd.IntN(3)]})
		job.token = s.token()
	}
}

// holds reports what the model knows of the actor's lease.
func (s *schedule) holds(a *actor) (holds, offered bool) {
	for _, e := range s.model.list(dibs.Query{ID: a.token.ID()}) {
		for _, at := range e.Attempts {
			if at.ID == a.token.ID() && at.Left > 0 {
				return true, at.Offered
			}
		}
	}
	return false, false
}

// waits reports whether the model has a place for the actor.
func (s *schedule) waits(a *actor) bool {
	c := s.ask(a)
	c.Mode = dibs.Look
	return s.model.claim(c).Queued
}

func (s *schedule) ask(a *actor) dibs.Claim {
	return dibs.Claim{
		Key: s.key, Token: a.token, TTL: long, Place: long, Permits: s.permits,
		Fingerprint: a.print, MaxAge: a.maxAge, AtMostOnce: a.atMostOnce,
	}
}

func (s *schedule) claim(p *process, a *actor, holds bool) {
	s.t.Helper()
	c := s.ask(a)
	c.Mode = []dibs.Mode{dibs.Try, dibs.Queue, dibs.Queue, dibs.Look}[s.rnd.IntN(4)]
	switch {
	case holds && c.Mode == dibs.Look:
		c.Mode = dibs.Try
	case a.reserves && !holds && !a.redeemed && s.rnd.IntN(2) == 0:
		c.Mode, c.Hold = dibs.Reserve, s.hold()
	case c.Mode == dibs.Queue:
		a.redeemed = true
	}
	if a.works && (c.Mode == dibs.Try || c.Mode == dibs.Look) && len(s.jobs) > 0 && s.rnd.IntN(4) > 0 {
		c.Redeems, c.Hold = s.jobs[s.rnd.IntN(len(s.jobs))].token, s.hold()
	}
	s.compare(p, a, c)
}

// hold returns for how long a reserved place may be in the way: none is that
// short that it ends, and Left tells them apart.
func (s *schedule) hold() time.Duration {
	return time.Duration(s.rnd.IntN(4)) * long / 4
}

// compare makes a claim and compares the answers.
func (s *schedule) compare(p *process, a *actor, c dibs.Claim) {
	s.t.Helper()
	want, got := s.model.claim(c), p.claim(c)
	s.note("%s claims in mode %d%s, with a Hold of %v: %s, want %s", a.name, c.Mode, s.origin(c), c.Hold, describe(got), describe(want))
	ok := got.Err == nil && got.State == want.State
	switch {
	case !ok:
	case got.State == dibs.Granted:
		ok = s.fence(want.Fence, got.Fence)
		if s.permits == 1 { // else "in a row" is nobody's order
			ok = ok && got.Attempt == want.Attempt &&
				bytes.Equal(got.Progress, want.Progress)
		}
	case got.State == dibs.Held:
		ok = got.Queued == want.Queued && got.Idle == want.Idle && got.Ahead >= want.Ahead &&
			(want.Ahead > 0 || got.Ahead == 0 || !got.Queued)
		switch c.Mode {
		case dibs.Try, dibs.Queue:
			ok = ok && got.Left > 0 && (got.Left-want.Left).Abs() < long/10
		case dibs.Look:
			ok = ok && got.Left > 0
		}
	case got.State == dibs.Done:
		ok = bytes.Equal(got.Record.Data, want.Record.Data)
	default:
		ok = got.ID == want.ID && got.Permits == want.Permits
	}
	s.check(ok)
}

// origin names the place that a claim is made from.
func (s *schedule) origin(c dibs.Claim) string {
	for _, job := range s.jobs {
		if job.token == c.Redeems {
			return " from the place of " + job.name
		}
	}
	return ""
}

// fence reports whether a grant's fence is right: always the same for one
// grant, and for a mutex above all before it.
func (s *schedule) fence(grant, got uint64) bool {
	if known, ok := s.fences[grant]; ok {
		return got == known
	}
	for _, other := range s.fences {
		if other == got {
			return false
		}
	}
	s.fences[grant] = got
	rises := got > s.last || s.permits > 1
	s.last = max(s.last, got)
	return rises
}

func (s *schedule) renew(p *process, a *actor) {
	s.t.Helper()
	r := dibs.Renewal{Key: s.key, Token: a.token, TTL: long}
	if s.rnd.IntN(2) == 0 {
		r.Progress = []byte("step " + itoa(s.rnd.IntN(100)))
	}
	want, got := s.model.renewals(r)[0], p.renewals(r)[0]
	s.note("%s renews: %v, want %v", a.name, got, want)
	s.check(isLost(got) == isLost(want) && (got == nil) == (want == nil))
}

func (s *schedule) settle(p *process, a *actor, x dibs.Settlement) {
	s.t.Helper()
	want, got := s.model.settlements(x)[0], p.settlements(x)[0]
	s.note("%s settles with outcome %d: %v, want %v", a.name, x.Outcome, got, want)
	s.check(isLost(got) == isLost(want) && (got == nil) == (want == nil))
}

func (s *schedule) note(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *schedule) check(ok bool) {
	s.t.Helper()
	if !ok {
		s.t.Fatalf("the last of these answers is wrong (set Harness.Seed to have them again):\n\t%s",
			strings.Join(s.log, "\n\t"))
	}
}

// describe prints of an answer what is compared.
func describe(a dibs.Answer) string {
	switch a.State {
	case dibs.Granted:
		return fmt.Sprintf("Granted fence %d attempt %d progress %q", a.Fence, a.Attempt, a.Progress)
	case dibs.Held:
		return fmt.Sprintf("Held Queued %v Ahead %d Idle %v Left %v", a.Queued, a.Ahead, a.Idle, a.Left.Round(time.Second))
	case dibs.Done:
		return fmt.Sprintf("Done %q", a.Record.Data)
	}
	return fmt.Sprintf("%s ID %q permits %d %v", stateName(a.State), a.ID, a.Permits, a.Err)
}
