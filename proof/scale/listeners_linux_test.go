package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/pgstore"
)

// TestListenersAreWoken checks what a notification of PostgreSQL costs that is for one
// process: the server wakes all that listen in the database, each in a process of its
// own, by the kernel's count of how often these stopped waiting.
func TestListenersAreWoken(t *testing.T) {
	t.Parallel()
	server, b := startPostgres(t, &pgstore.Options{})
	const bystanders, handOvers = 16, 100
	for i := range bystanders {
		c := client(t, b.open(t, never), nil)
		gather(t, b.open(t, never), []*dibs.Client{c}, keyName("theirs", i), 1).goOn(t)
	}
	var pids []string
	for _, row := range server.Query("SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' OR query LIKE '%ping%' AND application_name = 'dibs'") {
		pids = append(pids, row[0])
	}
	if len(pids) < bystanders {
		t.Fatalf("%d listen, of %d", len(pids), bystanders)
	}
	woken := func() (n float64) {
		for _, pid := range pids {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%s/status", pid))
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(status)) {
				if name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name == "voluntary_ctxt_switches" {
					n += number(t, strings.TrimSpace(value))
				}
			}
		}
		return n
	}
	two := []*dibs.Client{client(t, b.open(t, never), nil), client(t, b.open(t, never), nil)}
	watcher := b.open(t, never)
	gather(t, watcher, two, keyName("ours", 0), 2).goOn(t) // these two listen from now on
	crowd := gather(t, watcher, two, keyName("ours", 1), handOvers)
	before := woken()
	crowd.goOn(t)
	each := (woken() - before) / handOvers
	want := Wakes(len(pids))
	t.Logf("%d processes that wait for nothing were woken %.1f times for each of %d hand-overs; the model says %.0f", len(pids), each, handOvers, want)
	// Several notifications that come at once wake a process once.
	if each > want*factor || each < want/busy {
		t.Errorf("%.1f of %d were woken by each hand-over; the model says %.0f", each, len(pids), want)
	}
}
