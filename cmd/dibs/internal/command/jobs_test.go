package command

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs/store"
)

// TestJobsText: the line of a key's jobs tells those that run, those in a worker and those in the
// queue apart. A key without a reserved place has no jobs.
func TestJobsText(t *testing.T) {
	owner := func(host, label string) store.Owner { return store.Owner{Host: host, PID: 42, Label: label} }
	runs := []store.Run{{Owner: owner("a", "mail 109"), Left: time.Second}, {Owner: owner("a", "mail 108"), Left: -time.Second}}
	place := store.PlaceInfo{Reserved: true}
	waits := func(host, label string) store.PlaceInfo { return store.PlaceInfo{Owner: owner(host, label)} }
	for want, e := range map[string]store.Entry{
		"": {Runs: runs, Places: []store.PlaceInfo{waits("a", "echo")}, Waiters: 1},
		"mail 109 runs; mail 110, mail 113 wait in a worker on a; process 42 waits in a worker on b; 27 are in the queue": {
			Runs: runs, Places: []store.PlaceInfo{place, waits("a", "mail 110"), place, waits("b", ""), place, waits("a", "mail 113"), place}, Reserved: 27,
		},
		"1 is in the queue": {Places: []store.PlaceInfo{place}, Reserved: 1},
	} {
		if got := jobsText(e); got != want {
			t.Errorf("%q\nwant %q", got, want)
		}
	}
}
