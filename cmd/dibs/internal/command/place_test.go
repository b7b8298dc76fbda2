//go:build unix

package command_test

import (
	"strings"
	"testing"
)

// TestReleasePlace: show lists the places, and release removes a reserved place, because the
// place of a deleted job would hold up all others.
func TestReleasePlace(t *testing.T) { everyStore(t, checkReleasePlace) }

func checkReleasePlace(t *testing.T, b *bench) {
	situation(t, b)
	only := func(key string) line {
		t.Helper()
		all := b.list(t, "show", key, "--json")
		if len(all) != 1 || len(all[0].Places) != 1 {
			t.Fatalf("%s: %+v", key, all)
		}
		return all[0]
	}
	reserved, waiter := only("waiting").Places[0], only("held").Places[0]
	if p := reserved; !p.Reserved || p.Host != "web1" || p.PID != 42 || p.Label != "job" || p.LeftMS <= 0 || len(p.ID) != 16 {
		t.Errorf("the place is %+v", p)
	}
	if waiter.Reserved {
		t.Errorf("the waiter is %+v", waiter)
	}
	if code, stdout, _ := b.run(t, "show", "waiting"); code != 0 || !strings.Contains(stdout, reserved.ID+", web1 42 (job), reserved; blocks others when the key is free, until it expires in ") {
		t.Errorf("%d, %s", code, stdout)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--place", reserved.ID}, 1, ""}, // the question has no answer
		{[]string{"--place", waiter.ID, "--yes"}, 1, "waits for held now"},
		{[]string{"--place", "aaaaaaaaaaaaaaaa", "--yes"}, 1, "there is no place"},
		{[]string{"--place", "x", "--yes"}, 64, "not an ID"},
		{[]string{"waiting", "--place", reserved.ID, "--yes"}, 64, "cannot be used together"},
		{[]string{"--place", reserved.ID, "--yes"}, 0, "is removed"},
		{[]string{"--place", reserved.ID, "--yes"}, 1, "there is no place"},
	} {
		code, stdout, stderr := b.run(t, append([]string{"release"}, c.args...)...)
		if code != c.code || !strings.Contains(stdout+stderr, c.says) {
			t.Errorf("%q: %d, %s%s", c.args, code, stdout, stderr)
		}
	}
	if code, _, _ := b.run(t, "run", "--skip", "waiting", "--", "true"); code != 0 {
		t.Errorf("the key is not free: %d", code)
	}
	if n := len(only("held").Places); n != 1 {
		t.Errorf("another key has %d places", n)
	}
}
