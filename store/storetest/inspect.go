package storetest

import (
	"slices"
	"time"

	"github.com/dibs-go/dibs/store"
)

var inspectProperties = []Property{
	property("ListShowsEveryCondition",
		"An operator decides by the list what to release, forget or resolve.", func(t *Trial) {
			p, q := t.process(), t.process()
			start := time.Now()
			host := store.Owner{Host: "web-1", PID: 4711, Label: "charge the card"}
			a, b := store.NewToken(), store.NewToken()
			fences := map[string]uint64{}
			for _, name := range []string{"held", "done", "abandoned", "unknown", "locked"} {
				fences[name] = t.granted(name, p.try(key(name), a, owner(host), func(c *store.Claim) {
					c.AtMostOnce = name == "unknown"
				}), 1)
			}
			t.granted("held by two", p.try(key("two"), a, permits(3)), 1)
			t.granted("held by two", p.try(key("two"), b, permits(3)), 1)
			t.waits("a waiter for the held", p.queue(key("held"), b), 0)
			t.waits("another", p.queue(key("held"), store.NewToken()), 1)
			t.waits("reserved", p.reserve(key("waiting"), a), 0)
			t.ok("keep", p.keep(key("done"), a, "answer"))
			t.ok("keep", p.keep(key("locked"), a, "answer"))
			t.granted("locked", p.try(key("locked"), b), 1)
			t.ok("abandon", p.abandon(key("abandoned"), a))
			t.ok("abandon", p.abandon(key("unknown"), a))
			listed := q.list(store.Query{})
			took := time.Since(start)

			for name, want := range map[string]struct {
				condition store.Condition
				permits   int
				ids       []string
				waiters   int
				reserved  int
				record    string
			}{
				"held":      {store.ConditionHeld, 1, []string{a.ID()}, 2, 0, ""},
				"two":       {store.ConditionHeld, 3, []string{a.ID(), b.ID()}, 0, 0, ""},
				"locked":    {store.ConditionHeld, 1, []string{b.ID()}, 0, 0, a.ID()},
				"waiting":   {store.ConditionWaiting, 0, nil, 0, 1, ""},
				"done":      {store.ConditionDone, 0, nil, 0, 0, a.ID()},
				"abandoned": {store.ConditionAbandoned, 0, []string{a.ID()}, 0, 0, ""},
				"unknown":   {store.ConditionUnknown, 0, []string{a.ID()}, 0, 0, ""},
			} {
				e, ok := listed[key(name)]
				if !ok {
					t.Errorf("%s: not listed", name)
					continue
				}
				if e.Condition != want.condition || e.Permits != want.permits || e.Waiters != want.waiters || e.Reserved != want.reserved {
					t.Errorf("%s: %s with %d permits, %d waiters and %d reserved places, want %s with %d, %d and %d",
						name, e.Condition, e.Permits, e.Waiters, e.Reserved, want.condition, want.permits, want.waiters, want.reserved)
				}
				got := map[string]store.Run{}
				for _, at := range e.Runs {
					got[at.ID] = at
				}
				if len(e.Runs) != len(want.ids) {
					t.Errorf("%s: %d runs, want %d", name, len(e.Runs), len(want.ids))
				}
				for _, id := range want.ids {
					at, ok := got[id]
					if !ok {
						t.Errorf("%s: the run %s is not listed", name, id)
						continue
					}
					t.run(name, at, took)
					if f := fences[name]; id == a.ID() && f != 0 && (at.Fence != f || at.Owner != host) {
						t.Errorf("%s: fence %d and owner %q, want %d and %q", name, at.Fence, at.Owner, f, host)
					}
				}
				if e.Record == nil {
					if want.record != "" {
						t.Errorf("%s: no record is listed", name)
					}
					continue
				}
				if r := e.Record; r.ID != want.record || r.Bytes != len("answer") || r.Data != nil ||
					r.Age < 0 || r.Age > took+time.Second || r.Left <= 0 || r.Left > long+t.h.Unsure {
					t.Errorf("%s: the record is listed as %+v", name, *r)
				}
			}
			if len(listed) != 7 {
				t.Errorf("%d keys are listed, want 7", len(listed))
			}
		}).needs(Inspector),
	property("ListSelects",
		"An operator with a key or an ID gets that one, and records only if asked for.", func(t *Trial) {
			p := t.process()
			a, b, c := store.NewToken(), store.NewToken(), store.NewToken()
			one, two := store.Key{Namespace: "one", Name: "k"}, store.Key{Namespace: "two", Name: "k"}
			other := store.Key{Namespace: "two", Name: "l"}
			t.granted("a lease", p.try(one, a), 1)
			t.granted("a record to be", p.try(two, b), 1)
			t.ok("keep", p.keep(two, b, "answer"))
			t.granted("another", p.try(other, c), 1)
			t.ok("abandon", p.abandon(other, c))
			for what, q := range map[string]struct {
				query store.Query
				want  []store.Key
			}{
				"everything":          {store.Query{}, []store.Key{one, two, other}},
				"a namespace":         {store.Query{Namespace: &two.Namespace}, []store.Key{two, other}},
				"an empty namespace":  {store.Query{Namespace: new(string)}, nil},
				"a name":              {store.Query{Name: "k"}, []store.Key{one, two}},
				"a key":               {store.Query{Namespace: &one.Namespace, Name: "k"}, []store.Key{one}},
				"the ID of a lease":   {store.Query{ID: a.ID()}, []store.Key{one}},
				"the ID of a record":  {store.Query{ID: b.ID()}, []store.Key{two}},
				"an abandoned one":    {store.Query{ID: c.ID()}, []store.Key{other}},
				"an unused ID":        {store.Query{ID: store.NewToken().ID()}, nil},
				"an ID and namespace": {store.Query{ID: a.ID(), Namespace: &two.Namespace}, nil},
			} {
				listed := p.list(q.query)
				for _, k := range q.want {
					if _, ok := listed[k]; !ok {
						t.Errorf("a query for %s does not list %v", what, k)
					}
				}
				if len(listed) != len(q.want) {
					t.Errorf("a query for %s lists %d keys, want %d", what, len(listed), len(q.want))
				}
			}
			e := p.list(store.Query{Namespace: &two.Namespace, Name: "k", Data: true})[two]
			if e.Record == nil || string(e.Record.Data) != "answer" {
				t.Errorf("a query with Data lists the record %+v", e.Record)
			}
			for _, err := range p.inspect().List(t.Context(), store.Query{}) {
				t.ok("List", err)
				break // a reader may stop early
			}
			t.state("a claim after that", p.try(one, store.NewToken()), store.Held)
		}).needs(Inspector),
	property("ListSelectsByCondition",
		"An operator asks for what is held among a million keys that are done.", func(t *Trial) {
			p, q := t.process(), t.process()
			a, b := store.NewToken(), store.NewToken()
			for _, name := range []string{"held", "two", "held, with a record", "done", "done again", "done, and abandoned", "abandoned", "unknown", "waiting, with a record"} {
				t.granted(name, p.try(key(name), a, func(c *store.Claim) {
					if c.AtMostOnce = name == "unknown"; name == "two" {
						c.Permits = 2
					}
				}), 1)
			}
			for _, name := range []string{"held, with a record", "done", "done again", "done, and abandoned", "waiting, with a record"} {
				t.ok("keep", p.keep(key(name), a, "answer"))
			}
			t.granted("a lease after a record", p.try(key("held, with a record"), b), 1)
			t.granted("a lease after a record", p.try(key("done, and abandoned"), b), 1)
			for _, name := range []string{"abandoned", "unknown"} {
				t.ok("abandon", p.abandon(key(name), a))
			}
			t.ok("abandon", p.abandon(key("done, and abandoned"), b))
			t.waits("a place", p.reserve(key("waiting"), a), 0)
			t.waits("a place", p.reserve(key("waiting, with a record"), b), 0)
			held := []string{"held", "two", "held, with a record"}
			done := []string{"done", "done again", "done, and abandoned"}
			waiting := []string{"waiting", "waiting, with a record"}
			others := slices.Concat(held, waiting, []string{"abandoned", "unknown"})
			for _, c := range []struct {
				conditions []store.Condition
				want       []string
			}{
				{nil, slices.Concat(others, done)},
				{[]store.Condition{store.ConditionHeld}, held},
				{[]store.Condition{store.ConditionDone}, done},
				{[]store.Condition{store.ConditionWaiting}, waiting},
				{[]store.Condition{store.ConditionAbandoned, store.ConditionUnknown}, []string{"abandoned", "unknown"}},
				{[]store.Condition{store.ConditionHeld, store.ConditionDone}, slices.Concat(held, done)},
				{[]store.Condition{store.ConditionHeld, store.ConditionWaiting, store.ConditionAbandoned, store.ConditionUnknown}, others},
			} {
				var got []string
				for k := range q.list(store.Query{Conditions: c.conditions}) {
					got = append(got, k.Name)
				}
				slices.Sort(got)
				slices.Sort(c.want)
				if !slices.Equal(got, c.want) {
					t.Errorf("the keys that are %q: %q, want %q", c.conditions, got, c.want)
				}
			}
			space := key("k").Namespace
			named := func(k store.Key) bool { return k.Name == "done" || k.Name == "held" }
			for what, c := range map[string]struct {
				query store.Query
				want  int
			}{
				"what matches":                     {store.Query{Match: named}, 2},
				"of a namespace":                   {store.Query{Match: named, Namespace: &space}, 2},
				"what matches and is done":         {store.Query{Match: named, Conditions: []store.Condition{store.ConditionDone}}, 1},
				"a key that matches":               {store.Query{Match: named, Namespace: &space, Name: "held"}, 1},
				"a key that does not match":        {store.Query{Match: named, Namespace: &space, Name: "two"}, 0},
				"an attempt of what matches":       {store.Query{Match: named, ID: a.ID()}, 2},
				"an attempt of a key that is held": {store.Query{ID: b.ID(), Conditions: []store.Condition{store.ConditionHeld}}, 1},
			} {
				if got := q.list(c.query); len(got) != c.want {
					t.Errorf("%s: %d keys, want %d", what, len(got), c.want)
				}
			}
		}).needs(Inspector),
	property("ListLeavesOutWhatIsHeldBriefly",
		"An operator asks who waits and what hangs, while thousands of keys are held for a moment.", func(t *Trial) {
			p, q := t.process(), t.process()
			a, b := store.NewToken(), store.NewToken()
			for _, name := range []string{"held", "wanted", "reserved", "done", "unknown", "abandoned"} {
				t.granted(name, p.try(key(name), a, func(c *store.Claim) { c.AtMostOnce = name == "unknown" }), 1)
			}
			t.waits("a waiter", p.queue(key("wanted"), b), 0)
			t.waits("a place behind a lease", p.reserve(key("reserved"), b), 0)
			t.waits("a place", p.reserve(key("free"), b), 0)
			t.ok("keep", p.keep(key("done"), a, "answer"))
			for _, name := range []string{"unknown", "abandoned"} {
				t.ok("abandon", p.abandon(key(name), a))
			}
			live := []store.Condition{store.ConditionHeld, store.ConditionWaiting, store.ConditionUnknown}
			names := func(heldFor time.Duration, conditions []store.Condition) (all []string) {
				for k := range q.list(store.Query{HeldFor: heldFor, Conditions: conditions}) {
					all = append(all, k.Name)
				}
				slices.Sort(all)
				return all
			}
			for _, c := range []struct {
				conditions []store.Condition
				want       []string
			}{
				{nil, []string{"abandoned", "done", "free", "unknown", "wanted"}},
				{live, []string{"free", "unknown", "wanted"}},
			} {
				if got := names(long, c.conditions); !slices.Equal(got, c.want) {
					t.Errorf("of the keys that are %q, those that are held for long or wanted are %q, want %q", c.conditions, got, c.want)
				}
			}
			t.poll("all leases are old enough", func() bool {
				return slices.Equal(names(t.short(), live), []string{"free", "held", "reserved", "unknown", "wanted"})
			})
		}).needs(Inspector),
	property("ListTellsWaitersFromReservedPlaces",
		"A job that waits from its place is one waiter, the place of a job that runs is none, and an operator sees how long a place can block.", func(t *Trial) {
			p, q := t.process(), t.process()
			k := key("k")
			jobs, workers := make([]store.Token, 4), make([]store.Token, 4)
			for i := range jobs {
				jobs[i], workers[i] = store.NewToken(), store.NewToken()
				t.waits("reserving", p.reserve(k, jobs[i], grace(long/4)), i)
			}
			var shown map[store.Token]store.PlaceInfo
			want := func(what string, waiters, reserved int) {
				t.Helper()
				e := q.list(store.Query{Namespace: &k.Namespace, Name: k.Name, Places: true})[k]
				if e.Waiters != waiters || e.Reserved != reserved {
					t.Errorf("%s: %d waiters and %d reserved places, want %d and %d", what, e.Waiters, e.Reserved, waiters, reserved)
				}
				shown = map[store.Token]store.PlaceInfo{}
				for _, p := range e.Places {
					shown[p.Token] = p
				}
				if all := q.list(store.Query{})[k]; all.Waiters != waiters || all.Reserved != reserved {
					t.Errorf("%s, without the places: %d waiters and %d reserved places", what, all.Waiters, all.Reserved)
				}
			}
			use := func(what string, token store.Token, use store.Use) {
				t.Helper()
				if p := shown[token]; p.Use != use || !p.Reserved || p.Blocks <= 0 || p.Blocks > long/4+t.h.Unsure {
					t.Errorf("%s: %+v, want the use %q, and that it blocks up to %v", what, p, use, long/4)
				}
			}
			want("nothing runs", 0, 4)
			t.granted("the first job", p.queue(k, workers[0], from(jobs[0])), 1)
			t.waits("the second job", p.queue(k, workers[1], from(jobs[1])), 0)
			t.waits("the third job", p.queue(k, workers[2], from(jobs[2])), 1)
			want("one runs, two wait", 2, 1)
			use("the job that runs", jobs[0], store.UsedByLease)
			use("a job that waits", jobs[1], store.UsedByWait)
			use("another", jobs[2], store.UsedByWait)
			use("a job that has not come", jobs[3], store.Unused)
			if w := shown[workers[1]]; w.Reserved || w.Use != store.Unused || w.Blocks != 0 {
				t.Errorf("a waiter: %+v", w)
			}
			other := store.NewToken()
			t.waits("a caller without a place", p.queue(k, other), 3)
			t.waits("the first job, delivered twice", p.queue(k, store.NewToken(), from(jobs[0])), 0)
			want("two more wait", 4, 1)

			t.ok("the first job abandons", p.abandon(k, workers[0]))
			t.ok("the others give up", q.release(k, workers[1]))
			t.ok("the others give up", q.release(k, workers[2]))
			t.ok("the others give up", q.release(k, jobs[2]))
			want("the waiter of the first job, and the last caller", 2, 2)

			k = key("blocks")
			t.waits("a place forever", p.reserve(k, jobs[0]), 0)
			want("a place without a Grace", 0, 1)
			if p := shown[jobs[0]]; p.Blocks <= long/2 || p.Blocks > p.Left {
				t.Errorf("a place without a Grace blocks for %v of %v", p.Blocks, p.Left)
			}
			t.ok("release", p.release(k, jobs[0]))
			t.waits("a short place", p.reserve(k, jobs[1], grace(10*long), placeTTL(long/8)), 0)
			want("a place that ends before its Grace", 0, 1)
			if p := shown[jobs[1]]; p.Blocks <= 0 || p.Blocks > long/8+t.h.Unsure {
				t.Errorf("a place that ends in %v blocks for %v", p.Left, p.Blocks)
			}
		}).needs(Inspector),
	property("ListShowsPlaces",
		"The place of a dead job blocks others. An operator sees its owner, and removes that place and no other.", func(t *Trial) {
			p, q := t.process(), t.process()
			k, tokens := key("k"), make([]store.Token, 4)
			for i := range tokens {
				tokens[i] = store.NewToken()
			}
			job := func(i int) store.Owner { return store.Owner{Host: "web-1", PID: 4711, Label: "job " + itoa(i)} }
			places := func() []store.PlaceInfo {
				t.Helper()
				e := q.list(store.Query{Namespace: &k.Namespace, Name: k.Name, Places: true})[k]
				for _, p := range e.Places {
					if p.Left <= 0 || p.Left > long+t.h.Unsure {
						t.Errorf("a place lasts for %v, want up to %v", p.Left, long)
					}
				}
				return e.Places
			}
			want := func(what string, want ...int) {
				t.Helper()
				all := places()
				for i := range all {
					all[i].Left, all[i].Blocks, all[i].Use = 0, 0, ""
				}
				var expected []store.PlaceInfo
				for _, i := range want {
					expected = append(expected, store.PlaceInfo{Token: tokens[i], Owner: job(i), Reserved: i != 1})
				}
				if !slices.Equal(all, expected) {
					t.Errorf("%s: %+v are listed, want %+v", what, all, expected)
				}
			}
			holder := store.NewToken()
			t.granted("the holder", p.try(k, holder), 1)
			t.waits("reserved", p.reserve(k, tokens[0], owner(job(0))), 0)
			t.waits("a waiter", p.queue(k, tokens[1], owner(job(1))), 1)
			t.waits("reserved", p.reserve(k, tokens[2], owner(job(2))), 2)
			t.waits("reserved", p.reserve(k, tokens[3], owner(job(3))), 3)
			want("all", 0, 1, 2, 3)
			if e := q.list(store.Query{})[k]; e.Places != nil || e.Waiters != 1 || e.Reserved != 3 {
				t.Errorf("places are listed that the query did not ask for: %+v", e)
			}
			t.ok("taking one away", q.release(k, tokens[2]))
			want("without one", 0, 1, 3)
			t.ok("taking the first away", q.release(k, tokens[0]))
			want("without the first", 1, 3)
			t.ok("release", p.release(k, holder))
			a := store.NewToken()
			t.granted("the waiter", p.queue(k, tokens[1], owner(job(1))), 1)
			want("the reserved one", 3)
			t.ok("release", p.release(k, tokens[1]))
			t.granted("a claim from it", p.try(k, a, from(tokens[3])), 1)
			want("a place whose lease is live", 3)
			t.ok("abandon", p.abandon(k, a))
			want("a place whose lease was abandoned", 3)
			t.ok("taking it away", q.release(k, tokens[3]))
			want("none")
			t.granted("another caller", p.try(k, store.NewToken()), 2)
		}).needs(Inspector),
	property("NothingIsLeftBehind",
		"A lock leaves nothing. A backend that keeps a trace of every key that was ever locked fills up.", func(t *Trial) {
			p, q := t.process(), t.process()
			for i := range 20 {
				k, a, b, c := key("k"+itoa(i)), store.NewToken(), store.NewToken(), store.NewToken()
				t.granted("the holder", p.try(k, a), 1)
				t.state("a loser", q.try(k, store.NewToken()), store.Held)
				t.state("a look", q.look(k), store.Held)
				t.waits("a waiter", q.queue(k, b), 0)
				t.waits("a reserved place", q.reserve(k, c), 1)
				t.ok("release", p.release(k, a))
				t.granted("the waiter", q.queue(k, b), 1)
				t.ok("abandon", q.abandon(k, b))
				t.granted("from the reserved place", p.try(k, a, from(c)), 2)
				t.ok("release", p.release(k, a))
				t.state("a look", q.look(k), store.Free)
			}
			k, a := key("record"), store.NewToken()
			t.granted("the claim", p.try(k, a), 1)
			t.ok("keep", p.keepFor(k, a, "answer", t.short()))
			t.waits("a place", p.reserve(key("place"), a, placeTTL(t.short())), 0)
			t.outlast(t.short())
			for k, e := range q.list(store.Query{}) {
				t.Errorf("%v is still listed: %+v", k, e)
			}
		}).needs(Inspector),
}

// list returns what the store lists, by key.
func (p *process) list(q store.Query) map[store.Key]store.Entry {
	p.t.Helper()
	listed := map[store.Key]store.Entry{}
	for e, err := range p.inspect().List(p.t.Context(), q) {
		if err != nil {
			p.t.Fatalf("List: %v", err)
		}
		if _, twice := listed[e.Key]; twice {
			p.t.Fatalf("List: the key %v is listed twice", e.Key)
		}
		listed[e.Key] = e
	}
	return listed
}

// run checks what is listed of a run on the key of that name, made
// since the trial began.
func (t *Trial) run(name string, at store.Run, took time.Duration) {
	t.Helper()
	over := name == "abandoned" || name == "unknown"
	if at.Attempt != 1 || at.Fence == 0 || at.Since < 0 || at.Since > took+time.Second ||
		over != (at.Left <= 0) || at.Left > long+t.h.Unsure {
		t.Errorf("%s: the run is listed as %+v", name, at)
	}
}
