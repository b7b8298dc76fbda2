package sqlitestore

import "time"

// clock is the source of a store's time.
type clock struct {
	// boot identifies this boot of this host, from which monotonic counts.
	boot func() (string, error)
	// monotonic is the time since boot in µs, including suspension. It is the same in all
	// processes of the host.
	monotonic func() int64
	// wall is the wall clock in µs. Only fences use it.
	wall func() int64
}

var hostClock = clock{
	boot:      bootID,
	monotonic: sinceBoot,
	wall:      func() int64 { return time.Now().UnixMicro() },
}

// longest is the longest life of a record: a hundred years. Longer ones are cut, so that their
// ids do not overflow.
const longest = 100 * 365 * 24 * int64(time.Hour/time.Microsecond)
