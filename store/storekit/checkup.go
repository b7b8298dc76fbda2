package storekit

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/dibs-go/dibs/store"
)

const (
	// ClockTolerance is how far a clock may step without a finding.
	ClockTolerance = 500 * time.Millisecond
	// StoreConnections is how many connections a store takes at most.
	StoreConnections = 9
	// LongOpen is how long a transaction may be open without a finding.
	LongOpen = 10 * time.Minute
)

// slew is what to do about a clock.
const slew = "Have the clock slewed, not stepped (chronyd, or ntpd -x)."

// Checkup collects findings.
type Checkup struct{ found []store.Finding }

// Danger adds a dangerous finding if it is so.
func (c *Checkup) Danger(so bool, name, what, cure string) {
	c.add(so, store.SeverityDangerous, name, what, cure)
}

// Advice adds an advice if it is so.
func (c *Checkup) Advice(so bool, name, what, cure string) {
	c.add(so, store.SeverityAdvice, name, what, cure)
}

// Unchecked adds what could not be looked at, if it is so.
func (c *Checkup) Unchecked(so bool, name, what, cure string) {
	c.add(so, store.SeverityUnchecked, name, what, cure)
}

// Add adds findings.
func (c *Checkup) Add(found ...store.Finding) { c.found = append(c.found, found...) }

func (c *Checkup) add(so bool, severity store.Severity, name, what, cure string) {
	if so {
		c.found = append(c.found, store.Finding{Name: name, Severity: severity, What: what, Cure: cure})
	}
}

// Connections looks at how many of the server's connections are free: fewer than another store
// takes, or less than a tenth.
func (c *Checkup) Connections(used, most int64) {
	c.Advice(most-used < max(StoreConnections, most/10), "connections",
		fmt.Sprintf("%d of %d connections are in use. A store takes up to %d, and may get no other if it loses one.", used, most, StoreConnections),
		"Raise max_connections, or have the application's pools use fewer.")
}

// Rights looks at the rights that the user lacks, "" if none. reads says that it may not even take
// leases, as a user that only reads.
func (c *Checkup) Rights(lacks string, reads bool) {
	c.Unchecked(lacks != "" && reads, "rights",
		"This user may not take leases, so it is unknown whether the programs that use the store may: it lacks "+lacks+".",
		"Have Check run by the user of those programs, or GRANT this user what it lacks.")
	c.Danger(lacks != "" && !reads, "rights",
		"This user may take leases, but calls fail once a key is waited for or its data have expired: it lacks "+lacks+".",
		"GRANT this user what it lacks.")
}

// Version looks at the version of the store's tables, and reports whether the program works with
// it.
func (c *Checkup) Version(have, want int, migrate string) bool {
	text := fmt.Sprintf("The tables have version %d, this program needs %d.", have, want)
	c.Danger(have > want, "tables", text, "Use a newer program.")
	c.Danger(have < want, "tables", text, migrate)
	return have == want
}

// Ahead returns how far a fence is ahead of a clock, which shows microseconds.
func Ahead(fence, clock int64) time.Duration {
	return time.Duration(min(fence-clock, math.MaxInt64/1000)) * time.Microsecond
}

// Fence looks at the highest fence of the store, which is not above the server's clock
// unless that was set back.
func (c *Checkup) Fence(fence, clock int64) {
	ahead := Ahead(fence, clock)
	c.Danger(ahead > ClockTolerance, "clock",
		fmt.Sprintf("The highest fence is %v ahead of the server's clock, which was set back: leases from before expire that much too late, and fences would fall if the server lost its data now.", ahead.Round(time.Second)),
		"Put the clock right. "+slew)
}

// Findings returns what was found, the worst first.
func (c *Checkup) Findings() []store.Finding {
	slices.SortStableFunc(c.found, store.Finding.Compare)
	return c.found
}

// ClockReading is what the server's clock showed.
type ClockReading struct {
	Shows int64         // microseconds since 1970
	At    time.Time     // by this host's monotonic clock
	Vague time.Duration // how far off At may be
}

// ReadClock reads the server's clock with ask.
func ReadClock(ask func() (shows int64, err error)) (ClockReading, error) {
	start := time.Now()
	shows, err := ask()
	took := time.Since(start)
	return ClockReading{shows, start.Add(took / 2), took / 2}, err
}

// Clock remembers the last reading of the server's clock.
type Clock struct {
	mu   sync.Mutex
	last *ClockReading
}

// Check compares a reading with the last reading. The server's clock and this host's clock must have
// advanced by the same time.
func (k *Clock) Check(c *Checkup, r ClockReading) {
	k.mu.Lock()
	last := k.last
	k.last = &r
	k.mu.Unlock()
	if last == nil {
		return
	}
	here := r.At.Sub(last.At)
	step := time.Duration(r.Shows-last.Shows)*time.Microsecond - here
	word := "ahead: leases and records expired that much too early"
	if step < 0 {
		word = "back: leases and records expire that much too late"
	}
	// Without a step, clocks drift apart by less than a thousandth.
	c.Danger(step.Abs() > ClockTolerance+last.Vague+r.Vague+here/1000, "clock",
		fmt.Sprintf("In the last %v the server's clock was set %v %s; or this host was suspended.", here.Round(time.Second), step.Abs().Round(100*time.Millisecond), word),
		slew)
}
