package storetest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest/internal/model"
)

var scheduleProperties = []Property{
	property("RandomSchedules",
		"It finds what no property was written for: callers in several processes claim, renew and settle a key in random order. After each step the store must answer as the simplest correct store does.", func(t *Trial) {
			seed := t.h.Seed
			if seed == 0 {
				seed = rand.Uint64()
			}
			procs := []*process{t.process(), t.process(), t.process()}
			const schedules, steps = 40, 80
			for n := range schedules {
				s := newSchedule(t, procs, seed, n)
				for range steps {
					s.pass()
					s.step()
				}
			}
			t.Logf("seed %d", seed)
		}).heavy(),
}

// schedule is a random run of operations on one key, made both on the store
// and on a model. It keeps to what the contract settles: where two answers are
// right, the operation is not made.
type schedule struct {
	t     *Trial
	rnd   *rand.Rand
	procs []*process
	model *process
	key   store.Key
	log   []string

	permits []int // the claims have one of these
	prints  int   // how many different fingerprints they have
	actors  []*actor
	jobs    []*actor // whose places the actors claim from
	// fences has the store's fence of each grant, by the model's.
	fences map[uint64]uint64
	last   uint64
}

// actor is one caller with one token at a time.
type actor struct {
	name string
	store.Claim
	kept *store.Settlement // sent already; may be sent again
}

func newSchedule(t *Trial, procs []*process, seed uint64, n int) *schedule {
	s := &schedule{
		t: t, rnd: rand.New(rand.NewPCG(seed, uint64(n))), procs: procs,
		model: &process{t: t, store: model.New(model.None, t.turn).Open()},
		key:   key("schedule " + itoa(n)), fences: map[uint64]uint64{},
	}
	s.log = append(s.log, fmt.Sprintf("seed %d, schedule %d", seed, n))
	s.permits = [][]int{{1}, {1}, {3}, {1, 4, 4}, {40}}[s.rnd.IntN(5)]
	s.prints = s.rnd.IntN(3)
	for i := range []int{4, 7, 40}[s.rnd.IntN(3)] {
		a := &actor{name: "actor " + itoa(i)}
		if s.rnd.IntN(3) == 0 {
			a.MaxAge = store.AnyAge
		}
		s.begin(a)
		s.actors = append(s.actors, a)
	}
	for i := range s.rnd.IntN(4) {
		job := &actor{name: "job " + itoa(i)}
		job.Token = s.token()
		s.jobs = append(s.jobs, job)
	}
	return s
}

// begin gives the actor a new token. What it asks for with that it asks for throughout,
// as a real one does.
func (s *schedule) begin(a *actor) {
	a.kept, a.Token = nil, s.token()
	a.Key, a.Permits = s.key, s.permits[s.rnd.IntN(len(s.permits))]
	a.Weight = 1 + s.rnd.IntN(1+s.rnd.IntN(a.Permits))
	a.AtMostOnce = a.Permits == 1 && s.rnd.IntN(8) == 0
	a.Fingerprint, a.From = store.Fingerprint{}, store.Token{}
	if s.prints > 0 && s.rnd.IntN(4) > 0 {
		a.Fingerprint = printOf(itoa(s.rnd.IntN(s.prints)))
	}
	if len(s.jobs) > 0 && s.rnd.IntN(3) > 0 {
		a.From = s.jobs[s.rnd.IntN(len(s.jobs))].Token
	}
}

// token returns a token that depends on the seed alone.
func (s *schedule) token() store.Token {
	var t store.Token
	for i := range t {
		t[i] = byte(s.rnd.Uint32())
	}
	return t
}

// exact reports whether the store ends what expires at that instant, as the model does.
func (s *schedule) exact() bool { return s.t.h.Virtual && s.t.h.Unsure == 0 }

// lasts returns how long something lasts: for long in real time, because nothing may
// end between the two answers that are compared.
func (s *schedule) lasts() time.Duration {
	if !s.exact() {
		return long
	}
	return time.Millisecond + time.Duration(s.rnd.Int64N(int64(5*time.Second)))
}

// grace returns the Grace of a place, or none.
func (s *schedule) grace() time.Duration {
	return time.Duration(s.rnd.IntN(2)) * s.lasts()
}

// pass lets some time pass, if that costs nothing.
func (s *schedule) pass() {
	if !s.exact() {
		return
	}
	d := time.Duration(s.rnd.Int64N(int64(200 * time.Millisecond)))
	if s.rnd.IntN(20) == 0 {
		d = s.lasts()
	}
	time.Sleep(d)
	synctest.Wait() // so that what expires at this instant has expired
}

// step makes one random operation and compares the answers.
func (s *schedule) step() {
	s.t.Helper()
	p := s.procs[s.rnd.IntN(len(s.procs))]
	if len(s.jobs) > 0 && s.rnd.IntN(5) == 0 {
		s.jobStep(p, s.jobs[s.rnd.IntN(len(s.jobs))])
		return
	}
	a := s.actors[s.rnd.IntN(len(s.actors))]
	switch op := s.rnd.IntN(20); {
	case a.kept != nil:
		s.settle(p, a, *a.kept)
		s.begin(a)
	case op < 11:
		s.claim(p, a)
	case op < 13:
		s.renew(p, a)
	case op == 13:
		s.inspect(p, a)
	default:
		x := store.Settlement{Key: s.key, Token: a.Token, Outcome: store.Outcome(s.rnd.IntN(4))}
		if x.Outcome == store.Keep {
			x.Data, x.Retention = []byte("by "+a.Token.ID()), s.lasts()
		}
		if s.settle(p, a, x); s.rnd.IntN(2) == 0 {
			a.kept = &x
		} else {
			s.begin(a)
		}
	}
}

// jobStep makes one random operation with the token of a job's place.
func (s *schedule) jobStep(p *process, job *actor) {
	s.t.Helper()
	if s.rnd.IntN(6) > 0 {
		c := store.Claim{Key: s.key, Token: job.Token, Mode: store.Reserve, PlaceTTL: s.lasts()}
		c.Grace = s.grace()
		s.compare(p, job, c)
		return
	}
	s.settle(p, job, store.Settlement{Key: s.key, Token: job.Token, Outcome: []store.Outcome{store.Release, store.Abandon, store.Undo}[s.rnd.IntN(3)]})
	if s.rnd.IntN(2) == 0 {
		job.Token = s.token()
	}
}

func (s *schedule) claim(p *process, a *actor) {
	s.t.Helper()
	c := a.Claim
	c.Mode = []store.Mode{store.Try, store.Queue, store.Queue, store.Look}[s.rnd.IntN(4)]
	c.TTL, c.PlaceTTL = s.lasts(), s.lasts()
	if !c.From.IsZero() && s.rnd.IntN(3) == 0 {
		c.From = store.Token{}
	}
	if !c.From.IsZero() {
		c.Grace = s.grace()
	}
	s.compare(p, a, c)
}

// compare makes a claim and compares the answers.
func (s *schedule) compare(p *process, a *actor, c store.Claim) {
	s.t.Helper()
	want, got := s.model.claim(c), p.claim(c)
	from := ""
	for _, job := range s.jobs {
		if job.Token == c.From {
			from = " from " + job.name
		}
	}
	s.note("%s: mode %d%s grace %v, weight %d of %d, for %v: %s, want %s",
		a.name, c.Mode, from, c.Grace, c.Weight, c.Permits, max(c.TTL, c.PlaceTTL), describe(got), describe(want))
	ok := got.Err == nil && got.State == want.State
	switch {
	case !ok:
	case got.State == store.Granted:
		ok = s.fence(want.Fence, got.Fence) && got.Attempt == want.Attempt && bytes.Equal(got.Progress, want.Progress)
	case got.State == store.Held:
		ok = got.Queued == want.Queued && got.Ahead >= want.Ahead && (got.Ahead > 0) == (want.Ahead > 0) &&
			(got.Left > 0) == (want.Left > 0) && got.Left <= want.Left+time.Minute
	case got.State == store.Done:
		ok = bytes.Equal(got.Record.Data, want.Record.Data)
	default:
		ok = got.ID == want.ID && got.Queued == want.Queued
	}
	s.check(ok)
}

// fence reports whether a grant's fence is right: always the same for one
// grant, and above all before it.
func (s *schedule) fence(grant, got uint64) bool {
	if known, ok := s.fences[grant]; ok {
		return got == known
	}
	rises := got > s.last
	s.fences[grant], s.last = got, got
	return rises
}

func (s *schedule) renew(p *process, a *actor) {
	s.t.Helper()
	r := store.Renewal{Key: s.key, Token: a.Token, TTL: s.lasts()}
	if s.rnd.IntN(2) == 0 {
		r.Progress = []byte("step " + itoa(s.rnd.IntN(100)))
	}
	s.same(a.name+" renews", p.renewals(r)[0], s.model.renewals(r)[0])
}

func (s *schedule) settle(p *process, a *actor, x store.Settlement) {
	s.t.Helper()
	s.same(fmt.Sprintf("%s settles with outcome %d", a.name, x.Outcome), p.settlements(x)[0], s.model.settlements(x)[0])
}

func (s *schedule) same(what string, got, want error) {
	s.t.Helper()
	s.note("%s: %v, want %v", what, got, want)
	s.check(isLost(got) == isLost(want) && (got == nil) == (want == nil))
}

// inspect does something that an operator may do.
func (s *schedule) inspect(p *process, a *actor) {
	s.t.Helper()
	if s.t.h.lacks(Inspector) != "" {
		return
	}
	id := []string{"", a.Token.ID()}[s.rnd.IntN(2)]
	do := []func(store.Inspector) (any, error){
		func(in store.Inspector) (any, error) { return in.ForceRelease(s.t.Context(), s.key, id) },
		func(in store.Inspector) (any, error) { return in.Forget(s.t.Context(), s.key, id) },
		func(in store.Inspector) (any, error) {
			return in.Resolve(s.t.Context(), s.key, id, []byte("by hand"), long)
		},
	}
	what := s.rnd.IntN(len(do) + 1)
	if what == len(do) {
		s.list(p)
		return
	}
	want, _ := do[what](s.model.inspect())
	got, err := do[what](p.inspect())
	s.note("%s of %q: %v, %v, want %v", []string{"force release", "forget", "resolve"}[what], id, got, err, want)
	s.check(err == nil && got == want)
}

// list compares what is listed of the key.
func (s *schedule) list(p *process) {
	s.t.Helper()
	q := store.Query{Namespace: &s.key.Namespace, Name: s.key.Name}
	want, got := s.model.list(q)[s.key], p.list(q)[s.key]
	s.note("list: %+v, want %+v", got, want)
	s.check(got.Condition == want.Condition && got.Permits == want.Permits && got.Waiters == want.Waiters && got.Reserved == want.Reserved &&
		len(got.Runs) == len(want.Runs) && (got.Record == nil) == (want.Record == nil))
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
func describe(a store.Answer) string {
	switch a.State {
	case store.Granted:
		return fmt.Sprintf("Granted fence %d attempt %d progress %q", a.Fence, a.Attempt, a.Progress)
	case store.Held:
		return fmt.Sprintf("Held Queued %v Ahead %d Left %v", a.Queued, a.Ahead, a.Left)
	case store.Done:
		return fmt.Sprintf("Done %q", a.Record.Data)
	}
	return fmt.Sprintf("%s ID %q Queued %v %v", stateName(a.State), a.ID, a.Queued, a.Err)
}
