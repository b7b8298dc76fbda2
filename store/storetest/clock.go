package storetest

import (
	"time"

	"github.com/dibs-go/dibs/store"
)

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
					if t.state("another", d, store.Held); d.Left <= 0 || d.Left > long {
						t.Fatalf("a lease of %v has %v left by another's clock", long, d.Left)
					}
					t.ok("renew", holder.renew(k, a, long))
					t.state("another, after a renewal", other.try(k, store.NewToken()), store.Held)
					t.ok("keep", holder.keep(k, a, "answer"))
					d = other.try(k, store.NewToken(), answerable)
					if t.done("another", d, "answer"); d.Record.Age >= off/2 || d.Record.Left > long {
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
