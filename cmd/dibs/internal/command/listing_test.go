//go:build unix

package command_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// filling makes claims and settlements on a store for a test.
type filling struct {
	t *testing.T
	s inspected
}

// claim makes a claim of one permit.
func (f *filling) claim(key string, edit func(*store.Claim)) store.Claim {
	f.t.Helper()
	c := store.Claim{
		Key: dibs.Key{Name: key}, Token: store.NewToken(), TTL: time.Hour, PlaceTTL: time.Hour, Permits: 1, Weight: 1,
		Owner: store.Owner{Host: "web1", PID: 42, Label: "job"},
	}
	if edit != nil {
		edit(&c)
	}
	answers := make([]store.Answer, 1)
	testkit.Must(f.t, f.s.Claim(f.t.Context(), []store.Claim{c}, answers))
	testkit.Must(f.t, answers[0].Err)
	return c
}

// done makes keys that are done.
func (f *filling) done(names ...string) {
	f.t.Helper()
	for some := range slices.Chunk(names, 250) {
		claims, settlements := make([]store.Claim, len(some)), make([]store.Settlement, len(some))
		for i, name := range some {
			claims[i] = store.Claim{Key: dibs.Key{Name: name}, Token: store.NewToken(), TTL: time.Hour, Permits: 1, Weight: 1}
			settlements[i] = store.Settlement{Key: claims[i].Key, Token: claims[i].Token, Outcome: store.Keep, Data: []byte("12345"), Retention: time.Hour}
		}
		errs := make([]error, len(some))
		testkit.Must(f.t, f.s.Claim(f.t.Context(), claims, make([]store.Answer, len(some))))
		testkit.Must(f.t, f.s.Settle(f.t.Context(), settlements, errs))
		for _, err := range errs {
			testkit.Must(f.t, err)
		}
	}
}

func numbered(name string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s-%04d", name, i))
	}
	return all
}

// listed returns the keys of the table that ls prints, and its last line if that says what is
// not shown.
func listed(stdout string) (keys []string, hidden string) {
	for line := range strings.Lines(stdout) {
		switch name, _, _ := strings.Cut(line, " "); name {
		case "KEY":
		case "not":
			hidden = strings.TrimSpace(line)
		default:
			keys = append(keys, name)
		}
	}
	return keys, hidden
}

// TestListShowsWhatIsLive: ls lists the keys that something happens to, and counts those that
// are done.
func TestListShowsWhatIsLive(t *testing.T) { everyStore(t, checkListShowsWhatIsLive) }

func checkListShowsWhatIsLive(t *testing.T, b *bench) {
	situation(t, b)
	f := &filling{t, b.inspector(t)}
	f.done(numbered("order", 5)...)
	const hint = " (--state all lists all states)"
	for _, c := range []struct {
		args   string
		keys   string
		hidden string
	}{
		{"", `abandoned held pair pair unknown waiting "\xff"`, "6 done" + hint},
		{"--state done", "done order-0000 order-0001 order-0002 order-0003 order-0004", "3 held, 1 waiting, 1 unknown, 1 abandoned" + hint},
		{"--state done,unknown", "done order-0000 order-0001 order-0002 order-0003 order-0004 unknown", "3 held, 1 waiting, 1 abandoned" + hint},
		{"--state held", `held pair pair "\xff"`, "1 waiting, 1 unknown, 1 abandoned, 6 done" + hint},
		{"--state waiting --state abandoned", "abandoned waiting", "3 held, 1 unknown, 6 done" + hint},
		{"--state all --glob order-000[0]", "", ""},
		{"--state all --glob order*3", "order-0003", ""},
		{"--glob order*", "", "5 done" + hint},
		{"--glob held", "held", ""},
		{"--state done --limit 2", "", "3 held, 1 waiting, 1 unknown, 1 abandoned, 4 done" + hint},
		{"--glob order* --state done --limit 4", "", "1 done"},
		{"--limit 100", `abandoned held pair pair unknown waiting "\xff"`, "6 done" + hint},
		{"--sort waiters --limit 1", "held", "2 held, 1 waiting, 1 unknown, 1 abandoned, 6 done" + hint},
		{"--state all --sort waiters --limit 1", "held", "2 held, 1 waiting, 1 unknown, 1 abandoned, 6 done"},
		{"--state held --sort since --limit 1", "held", "2 held, 1 waiting, 1 unknown, 1 abandoned, 6 done" + hint},
	} {
		code, stdout, stderr := b.run(t, append([]string{"ls"}, strings.Fields(c.args)...)...)
		keys, hidden := listed(stdout)
		if c.keys == "" && strings.Contains(c.args, "--limit") {
			c.keys = strings.Join(keys, " ") // any
			if n := "--limit " + strconv.Itoa(len(keys)); !strings.Contains(c.args, n) {
				t.Errorf("ls %s lists %q", c.args, keys)
			}
		}
		want := c.hidden
		if want != "" {
			want = "not shown: " + want
		}
		if code != 0 || !b.namesItsStore(stderr) || strings.Join(keys, " ") != c.keys || hidden != want {
			t.Errorf("ls %s: %d, %q and %q, %s; want %q and %q", c.args, code, keys, hidden, stderr, c.keys, want)
		}
	}
	for _, args := range []string{"--state lost", "--state held,,done", "--sort key", "--limit 0", "--limit -1", "--all-namespaces --namespace n"} {
		if code, stdout, stderr := b.run(t, append([]string{"ls"}, strings.Fields(args)...)...); code != 64 || stdout != "" {
			t.Errorf("ls %s: %d, %s%s; want 64", args, code, stdout, stderr)
		}
	}
}

// TestListCountsDoneKeysUpToABound: among thousands of keys that are done, ls finds what is
// held, and reads no more of the others than it needs to say that they are many.
func TestListCountsDoneKeysUpToABound(t *testing.T) {
	everyStore(t, checkListCountsDoneKeysUpToABound)
}

func checkListCountsDoneKeysUpToABound(t *testing.T, b *bench) {
	f := &filling{t, b.inspector(t)}
	f.done(numbered("order", 1500)...)
	f.claim("nightly-report", nil)
	for _, c := range []struct {
		args   string
		keys   int
		hidden string
	}{
		{"", 1, "1000 or more done (--state all lists all states)"},
		{"--glob nightly*", 1, "an unknown number of done (--state all lists all states)"},
		{"--state done --limit 10", 10, "1 held, 1000 or more done (--state all lists all states)"},
		{"--state done --limit 1499", 1499, "1 held, 1 done (--state all lists all states)"},
		{"--state all --limit 10", 10, "1000 or more done"},
		{"--state all --limit 10 --sort since", 10, "1 held, 1490 done"},
		{"--state all", 1501, ""},
	} {
		code, stdout, stderr := b.run(t, append([]string{"ls"}, strings.Fields(c.args)...)...)
		keys, hidden := listed(stdout)
		if code != 0 || !b.namesItsStore(stderr) || len(keys) != c.keys || strings.TrimPrefix(hidden, "not shown: ") != c.hidden {
			t.Errorf("ls %s: %d, %d keys and %q, %s; want %d keys and %q", c.args, code, len(keys), hidden, stderr, c.keys, c.hidden)
		}
		if held := slices.Contains(keys, "nightly-report"); held == (strings.HasPrefix(c.args, "--state done") || strings.Contains(c.args, "since")) {
			t.Errorf("ls %s lists the key that is held: %v", c.args, held)
		}
	}
}

// TestWaitersAreWhoWaitsNow: a job that waits from its reserved place is one waiter, and the
// place of the job that runs is none.
func TestWaitersAreWhoWaitsNow(t *testing.T) { everyStore(t, checkWaitersAreWhoWaitsNow) }

func checkWaitersAreWhoWaitsNow(t *testing.T, b *bench) {
	f := &filling{t, b.inspector(t)}
	place := func(c *store.Claim) { c.Mode, c.Grace, c.PlaceTTL = store.Reserve, 2*time.Minute, 168*time.Hour }
	var places []store.Claim
	for range 4 {
		places = append(places, f.claim("k", place))
	}
	for _, p := range places[:3] { // one runs, two wait
		f.claim("k", func(c *store.Claim) { c.Mode, c.From = store.Queue, p.Token })
	}
	one := func(args ...string) line {
		t.Helper()
		all := b.list(t, append(args, "--json")...)
		if len(all) != 1 {
			t.Fatalf("%q: %+v", args, all)
		}
		return all[0]
	}
	if l := one("ls"); *l.Waiters != 2 || *l.Reserved != 1 {
		t.Errorf("ls: %d waiters and %d reserved places, want 2 and 1", *l.Waiters, *l.Reserved)
	}
	uses := map[string]string{}
	for _, p := range one("show", "k").Places {
		if p.Reserved {
			uses[p.ID] = p.Use
			if p.BlocksMS < 1 || p.BlocksMS > 120_000 || p.LeftMS < 600_000_000 {
				t.Errorf("a place that blocks two minutes: %+v", p)
			}
		} else if p.Use != "" || p.BlocksMS != 0 {
			t.Errorf("a waiter: %+v", p)
		}
	}
	for i, want := range []string{"holds", "waits", "waits", ""} {
		if got := uses[places[i].Token.ID()]; got != want {
			t.Errorf("the use of place %d is %q, want %q", i, got, want)
		}
	}
	_, stdout, _ := b.run(t, "show", "k")
	for _, want := range []string{
		"\nwaiters    2\n", "\nreserved   1\n", "\njobs       job runs; job, job wait in a worker on web1; 1 is in the queue\n",
		places[0].Token.ID() + ", web1 42 (job), reserved; its job holds the key now\n",
		places[1].Token.ID() + ", web1 42 (job), reserved; its job waits now\n",
		places[3].Token.ID() + ", web1 42 (job), reserved; blocks others for 2m0s at most when the key is free, expires in 16",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("show does not print %q:\n%s", want, stdout)
		}
	}

	// The second input: a place that has begun to block, and one without a Grace.
	f.claim("free", place)
	f.claim("free", nil) // is refused because of it
	if p := one("show", "free").Places[0]; p.BlocksMS < 1 || p.BlocksMS >= 120_000 {
		t.Errorf("a place that blocks now: %+v", p)
	}
	f.claim("forever", func(c *store.Claim) { c.Mode = store.Reserve })
	if p := one("show", "forever").Places[0]; p.BlocksMS < 3_000_000 || p.BlocksMS > p.LeftMS {
		t.Errorf("a place without a Grace: %+v", p)
	}
}

// TestShowFindsADigest: a digest from a log leads to its key, in any namespace, and each key's
// digest is printed.
func TestShowFindsADigest(t *testing.T) { everyStore(t, checkShowFindsADigest) }

func checkShowFindsADigest(t *testing.T, b *bench) {
	f := &filling{t, b.inspector(t)}
	f.claim("order-17", nil)
	f.claim("order-17", func(c *store.Claim) { c.Key.Namespace = "n" })
	f.done(numbered("order", 3)...)
	for _, c := range []struct {
		key  dibs.Key
		args []string
		says string
	}{
		{dibs.Key{Name: "order-17"}, nil, "reads all keys of all namespaces, because a digest cannot be looked up\n"},
		{dibs.Key{Namespace: "n", Name: "order-17"}, nil, "of all namespaces"},
		{dibs.Key{Namespace: "n", Name: "order-17"}, []string{"--namespace=n"}, "reads all keys of the namespace n, "},
		{dibs.Key{Name: "order-0002"}, nil, "of all namespaces"},
	} {
		digest := c.key.Digest()
		code, stdout, stderr := b.run(t, append([]string{"show", "--digest", digest}, c.args...)...)
		if code != 0 || !strings.HasPrefix(stdout, "key        "+c.key.Name+"\n") || !strings.Contains(stdout, "\ndigest     "+digest+"\n") ||
			strings.Contains(stdout, "\nnamespace ") != (c.key.Namespace != "") || strings.Count(stdout, "key   ") != 1 || !strings.Contains(stderr, c.says) {
			t.Errorf("%v: %d, %s%s", c.key, code, stdout, stderr)
		}
		if _, stdout, _ := b.run(t, "ls", "--state", "all", "--all-namespaces"); !strings.Contains(stdout, " "+digest+" ") {
			t.Errorf("ls does not print %s", digest)
		}
	}
	none := dibs.Key{Name: "order-18"}.Digest()
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--digest", none}, 1, "of a key with the digest " + none + "\n"},
		{[]string{"--digest", dibs.Key{Namespace: "n", Name: "order-17"}.Digest(), "--namespace", "m"}, 1, "in the namespace m"},
		{[]string{"--digest", none[:11]}, 64, "is not a digest"},
		{[]string{"--digest", "E3ACBC87875C"}, 64, "is not a digest"},
		{[]string{"--digest", ""}, 64, "is not a digest"},
		{[]string{"--digest", none, "order-17"}, 64, "name the key in one way"},
	} {
		if code, stdout, stderr := b.run(t, append([]string{"show"}, c.args...)...); code != c.code || stdout != "" || !strings.Contains(stderr, c.says) {
			t.Errorf("show %q: %d, %s%s", c.args, code, stdout, stderr)
		}
	}
}

// namesItsStore reports whether a message is the line with which ls begins and no more.
func (b *bench) namesItsStore(stderr string) bool {
	return strings.HasPrefix(stderr, "store ") && strings.Count(stderr, "\n") == 1
}

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
