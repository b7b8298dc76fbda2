package storetest

import (
	"strings"
	"time"

	"github.com/dibs-go/dibs/store"
)

var fenceProperties = []Property{
	property("FencesRise",
		"A fence separates the writes of a holder from the late writes of an earlier one. So each grant's fence must be above all fences before it, however the last lease ended.", func(t *Trial) {
			p, q := t.process(), t.process()
			k := key("k")
			var last uint64
			rises := func(what string, a store.Answer) {
				t.Helper()
				t.state(what, a, store.Granted)
				if a.Fence <= last {
					t.Fatalf("%s: the fence %d does not rise above the last one, %d", what, a.Fence, last)
				}
				last = a.Fence
			}
			for range 5 {
				for i, p := range []*process{p, q} {
					a := store.NewToken()
					rises("after a release", p.try(k, a))
					t.ok("release", p.release(k, a))
					a = store.NewToken()
					rises("after another release", p.try(k, a))
					if i == 0 {
						t.ok("abandon", p.abandon(k, a))
					} else {
						t.ok("keep", p.keep(k, a, "answer"))
					}
				}
			}
			rises("after a record", p.try(k, store.NewToken(), ttl(t.short())))
			t.outlast(t.short())
			a, b := store.NewToken(), store.NewToken()
			rises("after a lease expired", q.try(k, a))
			t.waits("a waiter", p.queue(k, b), 0)
			t.ok("release", q.release(k, a))
			rises("after a hand-over", p.queue(k, b))
		}),
	property("FencesRiseAfterWipe",
		"A backend that lost its data must not grant old fences again. Otherwise resources refuse the writes of the newest holder and accept those of an old one.", func(t *Trial) { t.rises(t.wipe) }).needs(Wipe),
	property("FencesRiseAfterRestart",
		"Old holders often come back after a restart of the backend. Their fences must be lower than those granted after it.", func(t *Trial) { t.rises(t.restart) }).needs(Restart),
}

// rises checks that fences rise across what happens to the backend. It lets some time
// pass, so that a fence may be the time of its grant in microseconds.
func (t *Trial) rises(happens func() *process) {
	t.Helper()
	p := t.process()
	last := map[store.Key]uint64{}
	for range 3 {
		for i := range 60 {
			k, a := key("k"+itoa(i%3)), store.NewToken()
			fence := t.granted("a grant", p.try(k, a), 1)
			if fence <= last[k] {
				t.Fatalf("the fence %d does not rise above the last one, %d", fence, last[k])
			}
			last[k] = fence
			t.ok("release", p.release(k, a))
		}
		time.Sleep(10 * time.Millisecond)
		p = happens()
	}
}

// off is how wrong the clocks of the skewed processes are: more than any lease here lasts.
const off = 3 * time.Hour

var clockProperties = []Property{
	property("ClientsClocksDoNotMatter",
		"Clocks of hosts differ, jump and are set wrong. A fast clock must not end the leases of other hosts, and a slow clock must not prolong its own.", func(t *Trial) {
			fast, slow, right := t.skewed(off), t.skewed(-off), t.process()
			for _, holder := range []*process{fast, slow, right} {
				for _, other := range []*process{fast, slow, right} {
					k, a := key(store.NewToken().ID()), store.NewToken()
					t.granted("the holder", holder.try(k, a), 1)
					d := other.try(k, store.NewToken())
					if t.state("another", d, store.Held); d.Left <= 0 || d.Left > long+t.h.Unsure {
						t.Fatalf("a lease of %v has %v left by another's clock", long, d.Left)
					}
					t.ok("renew", holder.renew(k, a, long))
					t.state("another, after a renewal", other.try(k, store.NewToken()), store.Held)
					t.ok("keep", holder.keep(k, a, "answer"))
					d = other.try(k, store.NewToken(), answerable)
					if t.done("another", d, "answer"); d.Record.Age >= off/2 || d.Record.Left > long+t.h.Unsure {
						t.Fatalf("a record kept for %v just now is %v old and has %v left by another's clock",
							long, d.Record.Age, d.Record.Left)
					}
				}
			}
		}).needs(Skew),
	property("SkewedLeasesEndOnTime",
		"The lease of a process with a wrong clock expires by the backend's clock, for every caller.", func(t *Trial) {
			fast, slow := t.skewed(off), t.skewed(-off)
			for name, pair := range map[string][2]*process{"fast holder": {fast, slow}, "slow holder": {slow, fast}} {
				k := key(name)
				before := time.Now()
				t.granted("the holder", pair[0].try(k, store.NewToken(), ttl(t.short())), 1)
				t.ends("the lease of a "+name, before, time.Now(), t.short(), func() bool {
					return pair[1].try(k, store.NewToken()).State == store.Granted
				})
			}
		}).needs(Skew),
}

var pruneProperties = []Property{
	property("PruneRemovesWhatEnded",
		"A table that only grows gets slow. Prune removes as much ended data as asked for, and nothing that a caller could still need.", func(t *Trial) {
			const n = 7
			p, q := t.process(), t.process()
			prune := func(limit int) int {
				t.Helper()
				got, err := q.store.(store.Pruner).Prune(t.Context(), limit)
				if err != nil {
					t.Fatalf("Prune: %v", err)
				}
				if got < 0 || limit > 0 && got > limit {
					t.Fatalf("Prune with the limit %d removed %d", limit, got)
				}
				return got
			}
			a, w := store.NewToken(), store.NewToken()
			t.granted("a live lease", p.try(key("held"), a, asked("this")), 1)
			t.waits("a live place", p.queue(key("held"), w), 0)
			t.waits("a reserved place", p.reserve(key("reserved"), a), 0)
			t.granted("a record to be", p.try(key("done"), a, asked("this")), 1)
			t.ok("keep", p.keep(key("done"), a, "answer"))
			t.granted("a caller that dies", p.try(key("abandoned"), store.NewToken(), ttl(t.short())), 1)
			t.granted("another that dies", p.try(key("unknown"), a, ttl(t.short()), atMostOnce), 1)
			for i := range n {
				k := key("ended" + itoa(i))
				t.granted("a short record to be", p.try(k, a, asked("this")), 1)
				t.ok("keep", p.keepFor(k, a, "answer", t.short()))
			}
			t.outlast(t.short())

			// Stores also prune on their own, and may have done so.
			removed := prune(2)
			removed += prune(0)
			if removed > n {
				t.Errorf("%d were removed, only %d had ended", removed, n)
			}
			if again := prune(0); again != 0 {
				t.Errorf("%d more were removed after all were", again)
			}
			for i := range n {
				t.granted("a key whose record ended", p.try(key("ended"+itoa(i)), store.NewToken(), answerable, asked("that")), 1)
			}
			t.state("the live lease", p.try(key("held"), store.NewToken()), store.Held)
			t.ok("its renewal", p.renew(key("held"), a, long))
			t.ok("its release", p.release(key("held"), a))
			t.granted("the live place", p.queue(key("held"), w), 1)
			t.state("behind the reserved place", p.try(key("reserved"), store.NewToken()), store.Held)
			t.granted("from the reserved place", p.try(key("reserved"), w, from(a)), 1)
			t.done("the live record", p.look(key("done"), answerable), "answer")
			t.granted("after the abandoned", p.try(key("abandoned"), store.NewToken()), 2)
			t.unknown("after the unknown", p.try(key("unknown"), store.NewToken()), a)
		}).needs(Pruner),
}

// distinctKeys returns keys that some backend has taken for one another.
func distinctKeys() []store.Key {
	var every strings.Builder
	for i := range store.MaxKey {
		every.WriteByte(byte(i))
	}
	most := strings.Repeat("k", store.MaxKey-1)
	keys := []store.Key{
		{Namespace: "a", Name: "b/c"}, {Namespace: "a/b", Name: "c"}, // joined by a slash
		{Namespace: "a", Name: "b:c"}, {Namespace: "a:b", Name: "c"},
		{Namespace: "", Name: "a:b"}, {Namespace: "a", Name: "b"},
		{Namespace: "", Name: "ab"}, {Namespace: "ab", Name: "c"}, {Namespace: "a", Name: "bc"},
		{Namespace: "A", Name: "b"}, {Namespace: "{a}", Name: "b"},
		{Namespace: strings.Repeat("n", store.MaxNamespace), Name: "k"},
		{Namespace: strings.Repeat("n", store.MaxNamespace-1), Name: "k"},
	}
	for _, name := range []string{
		every.String(),               // all bytes, twice
		every.String()[1:] + "\n",    // the same but for its ends
		most + "1", most + "2", most, // the last byte
		strings.Repeat("k", 255), strings.Repeat("k", 256), strings.Repeat("k", 254), // columns of 255
		strings.Repeat("K", 255) + "a", strings.Repeat("K", 255) + "b",
		"key", "Key", "KEY", // case
		"key ", " key", "key  ", "key\t", // padding
		"\x00", "\x00\x00", "key\x00", "key\x00a", "key\x00b", // C strings
		"\u00e9", "e\u0301", "e", "\u00c9", // accents, composed and not
		"\u00df", "ss", "\ufb01", "fi", // letters that collate as two
		"\xff", "\xfe", "\xff\xfe", "\xc3", "\xc3\x28", "\ufffd", // not UTF-8, and what it is replaced by
		"k%", "k_", "k*", "k?", "[k]", "{k}", "{k}1", // patterns and hash tags
		"k'", "k''", `k"`, `k\`, `k\\`, "k;--", // quoting
		"1", "01", "1.0", "0x1", "NULL", "null", // numbers and nothing
		".", "..", "/", "//", "a/b", "a//b", // paths
		"key\n", "key\r\n", "key\r",
	} {
		keys = append(keys, key(name))
	}
	return keys
}

var keysProperties = []Property{
	property("KeysAreDistinct",
		"Keys are bytes. If a backend truncates, folds, trims, normalises or joins keys, two different keys lock each other out and answer for each other.", func(t *Trial) {
			p, q := t.process(), t.process()
			keys := distinctKeys()
			claims := make([]store.Claim, len(keys))
			for i, k := range keys {
				claims[i] = lock(k, store.NewToken(), answerable)
			}
			for i, a := range p.claims(claims...) {
				if a.Err != nil || a.State != store.Granted {
					t.Errorf("the key %s in the namespace %q is taken for another: %s, %v",
						excerpt(keys[i].Name), keys[i].Namespace, stateName(a.State), a.Err)
				}
			}
			if t.Failed() {
				return
			}
			settlements := make([]store.Settlement, len(keys))
			for i, c := range claims {
				settlements[i] = store.Settlement{
					Key: c.Key, Token: c.Token, Outcome: store.Keep, Data: []byte("record " + itoa(i)), Retention: long,
				}
			}
			for i, err := range p.settlements(settlements...) {
				t.ok("keep under "+excerpt(keys[i].Name), err)
			}
			for i, k := range keys {
				t.done("a reader of "+excerpt(k.Name), q.look(k, answerable), "record "+itoa(i))
			}
		}),
	property("NamespacesNeverMeet",
		"Two applications on one backend use the same names for different things.", func(t *Trial) {
			p := t.process()
			spaces := []string{"", "a", "b", "A", "a.b", "a/", "~!{}'\"\\%_"}
			for i, ns := range spaces {
				k := store.Key{Namespace: ns, Name: "k"}
				a := store.NewToken()
				t.granted("the key in "+quoted(ns), p.try(k, a, permits(i+1), asked(ns)), 1)
				t.waits("a place in "+quoted(ns), p.reserve(k, store.NewToken(), permits(i+1), asked(ns)), 0)
			}
			for i, ns := range spaces {
				other := spaces[(i+1)%len(spaces)]
				k := store.Key{Namespace: other, Name: "k"}
				t.state("the key in "+quoted(other)+", asked as in "+quoted(ns), p.look(k, asked(ns),
					permits((i+1)%len(spaces)+1)), store.Mismatch)
			}
		}),
	property("KeysAreListedAsTheyAre",
		"The list must show each key byte for byte, because an operator uses it to release that key.", func(t *Trial) {
			p, q := t.process(), t.process()
			keys := distinctKeys()
			for _, k := range keys {
				t.granted("the key "+excerpt(k.Name), p.try(k, store.NewToken()), 1)
			}
			listed := q.list(store.Query{})
			for _, k := range keys {
				if _, ok := listed[k]; !ok {
					t.Errorf("the key %s in the namespace %q is not listed", excerpt(k.Name), k.Namespace)
				}
				if one := q.list(store.Query{Namespace: &k.Namespace, Name: k.Name}); len(one) != 1 {
					t.Errorf("a query for the key %s in the namespace %q lists %d keys", excerpt(k.Name), k.Namespace, len(one))
				}
				t.count("force release of "+excerpt(k.Name), 1)(q.inspect().ForceRelease(t.Context(), k, ""))
			}
			if len(listed) != len(keys) {
				t.Errorf("%d keys are listed, want %d", len(listed), len(keys))
			}
			if left := q.list(store.Query{}); len(left) != 0 {
				t.Errorf("%d keys are listed after all were released", len(left))
			}
		}).needs(Inspector),
}
