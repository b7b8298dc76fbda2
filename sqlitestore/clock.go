package sqlitestore

import (
	"math"
	"time"
)

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

// longest is the longest lease, place or record: a hundred years. Longer ones are cut, so
// that no sum overflows.
const longest = 100 * 365 * 24 * int64(time.Hour/time.Microsecond)

// micros returns d in µs, rounded up, because nothing may end early.
func micros(d time.Duration) int64 {
	if d > math.MaxInt64-time.Microsecond {
		return longest
	}
	return min(int64((d+time.Microsecond-1)/time.Microsecond), longest)
}

func duration(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
