package jobs_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// runLog notes what runs, by key, and fails the test when two of one do at once.
type runLog struct {
	t       *testing.T
	mu      sync.Mutex
	running map[string]int
	most    int
	ran     map[string][]string
	at      map[string]time.Time // of an ID's last end
}

func newRunLog(t *testing.T) *runLog {
	return &runLog{t: t, most: 1, running: map[string]int{}, ran: map[string][]string{}, at: map[string]time.Time{}}
}

// run is what the job with that ID of the key does.
func (l *runLog) run(key, id string, d time.Duration) {
	l.mu.Lock()
	l.running[key]++
	if l.running[key] > l.most {
		l.t.Errorf("%d jobs of %s at once", l.running[key], key)
	}
	l.mu.Unlock()
	time.Sleep(d)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running[key]--
	l.ran[key] = append(l.ran[key], id)
	l.at[id] = time.Now()
}

// work is what workers do whose jobs take d.
func (l *runLog) work(d time.Duration) func(context.Context, string) error {
	return func(_ context.Context, id string) error { l.run(keyOf(id), id, d); return nil }
}

// inOrder fails the test unless the key's jobs were these, in this order.
func (l *runLog) inOrder(key string, want ...string) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.ran[key], want) {
		l.t.Errorf("of %s ran %v, want %v", key, l.ran[key], want)
	}
}

func ids(prefix string, n int) []string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprint(prefix, i))
	}
	return list
}
