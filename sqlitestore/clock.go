package sqlitestore

import (
	"math"
	"time"
)

// clock is where a store gets its time from.
type clock struct {
	// boot names this boot of this host: what monotonic counts from.
	boot func() (string, error)
	// monotonic is the time since boot in microseconds, the same for all
	// processes of the host. It includes the time that the host was suspended.
	monotonic func() int64
	// wall is the wall clock in microseconds. Only fences come from it.
	wall func() int64
}

// hostClock is the clock of this host.
var hostClock = clock{
	boot:      bootID,
	monotonic: sinceBoot,
	wall:      func() int64 { return time.Now().UnixMicro() },
}

// longest is the longest time that a lease, place or record lasts: a hundred
// years. More is taken for that, so that no sum overflows.
const longest = 100 * 365 * 24 * int64(time.Hour/time.Microsecond)

// micros returns d in microseconds, rounded up, because nothing ends early.
func micros(d time.Duration) int64 {
	if d > math.MaxInt64-time.Microsecond {
		return longest
	}
	return min(int64((d+time.Microsecond-1)/time.Microsecond), longest)
}

// duration returns a number of microseconds as a Duration.
func duration(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
