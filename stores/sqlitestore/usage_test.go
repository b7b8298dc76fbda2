//go:build unix

package sqlitestore

import (
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"golang.org/x/sys/unix"
)

// BenchmarkWaiting measures what waiting costs: the processor time, in percent
// of one core, while 1000 tokens wait and nothing happens.
func BenchmarkWaiting(b *testing.B) {
	s := openTest(b, testFile(b), nil, hostClock)
	woken(b, s)
	mustGrant(b, s, lock("k"))
	claims := make([]store.Claim, 1000)
	for i := range claims {
		claims[i] = lock("k")
		claims[i].Mode = store.Queue
	}
	testkit.Must(b, s.Claim(b.Context(), claims, make([]store.Answer, len(claims))))
	var once sync.Once
	var start time.Duration
	for b.Loop() {
		once.Do(func() { start = processorTime(b) })
		<-time.After(time.Second)
	}
	b.ReportMetric(100*(processorTime(b)-start).Seconds()/b.Elapsed().Seconds(), "%core")
}

// processorTime is what this process has used so far.
func processorTime(t testing.TB) time.Duration {
	var u unix.Rusage
	testkit.Must(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
