//go:build unix

package command_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/sqlitestore"
)

// line is a line of ls --json, as cli.md describes it.
type line struct {
	Key       *string `json:"key"`
	KeyBase64 string  `json:"key_base64"`
	Namespace *string `json:"namespace"`
	Digest    string  `json:"digest"`
	State     string  `json:"state"`
	Holder    *struct {
		Host  string    `json:"host"`
		PID   int       `json:"pid"`
		Label string    `json:"label"`
		Since time.Time `json:"since"`
	} `json:"holder"`
	Fence    uint64 `json:"fence"`
	Attempt  int    `json:"attempt"`
	Permits  int    `json:"permits"`
	LeftMS   *int64 `json:"left_ms"`
	Waiters  *int   `json:"waiters"`
	Reserved *int   `json:"reserved"`
	Places   []struct {
		ID       string `json:"id"`
		Host     string `json:"host"`
		PID      int    `json:"pid"`
		Label    string `json:"label"`
		LeftMS   int64  `json:"left_ms"`
		Reserved bool   `json:"reserved"`
		Use      string `json:"use"`
		BlocksMS int64  `json:"blocks_ms"`
	} `json:"places"`
	Record *struct {
		Bytes         int    `json:"bytes"`
		AgeMS         int64  `json:"age_ms"`
		LeftMS        int64  `json:"left_ms"`
		Status        int    `json:"status"`
		EncryptedWith string `json:"encrypted_with"`
	} `json:"record"`
	ID string `json:"id"`
}

// list runs the program and reads the lines that it prints.
func (b *bench) list(t *testing.T, args ...string) []line {
	t.Helper()
	code, stdout, stderr := b.run(t, args...)
	if code != 0 || stderr != "" {
		t.Fatalf("%q: %d, %s", args, code, stderr)
	}
	var all []line
	for text := range strings.Lines(stdout) {
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		var l line
		if err := d.Decode(&l); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		all = append(all, l)
	}
	return all
}

// situation fills the store with a key of every state.
func situation(t *testing.T, b *bench) {
	t.Helper()
	s := b.inspector(t)
	claim := func(key string, change func(*store.Claim)) store.Claim {
		c := store.Claim{
			Key: dibs.Key{Name: key}, Token: store.NewToken(), TTL: time.Hour, PlaceTTL: time.Hour, Permits: 1, Weight: 1,
			Owner: store.Owner{Host: "web1", PID: 42, Label: "job"},
		}
		if change != nil {
			change(&c)
		}
		answers := make([]store.Answer, 1)
		if err := s.Claim(t.Context(), []store.Claim{c}, answers); err != nil || answers[0].Err != nil {
			t.Fatal(err, answers[0].Err)
		}
		return c
	}
	settle := func(c store.Claim, o store.Outcome) {
		errs := make([]error, 1)
		if err := s.Settle(t.Context(), []store.Settlement{{
			Key: c.Key, Token: c.Token, Outcome: o, Data: []byte("12345"), Retention: time.Hour,
		}}, errs); err != nil || errs[0] != nil {
			t.Fatal(err, errs[0])
		}
	}
	claim("held", nil)
	claim("held", func(c *store.Claim) { c.Mode = store.Queue })
	claim("pair", func(c *store.Claim) { c.Permits = 2; c.Owner.Label = "" })
	claim("pair", func(c *store.Claim) { c.Permits = 2; c.Owner.Label = "\x1b[31m" })
	settle(claim("done", nil), store.Keep)
	settle(claim("abandoned", nil), store.Abandon)
	settle(claim("unknown", func(c *store.Claim) { c.AtMostOnce = true }), store.Abandon)
	claim("waiting", func(c *store.Claim) { c.Mode = store.Reserve })
	claim("\xff", nil)
	claim("elsewhere", func(c *store.Claim) { c.Key.Namespace = "n" })
}

func TestListJSON(t *testing.T) { everyStore(t, checkListJSON) }

func checkListJSON(t *testing.T, b *bench) {
	began := time.Now().Truncate(time.Second)
	situation(t, b)
	all := b.list(t, "ls", "--json", "--state", "all")
	var got []string
	for _, l := range all {
		name := "base64:" + l.KeyBase64
		if l.Key != nil {
			name = *l.Key
		}
		got = append(got, name+": "+l.State)
		held := l.State == "held"
		switch {
		case l.Namespace == nil || l.Waiters == nil || l.Reserved == nil:
			t.Errorf("%s: namespace, waiters or reserved are missing", name)
		case l.Key != nil && l.Digest != (dibs.Key{Name: *l.Key}).Digest():
			t.Errorf("%s: the digest is %s", name, l.Digest)
		case held && (l.Holder == nil || l.LeftMS == nil || *l.LeftMS <= 0 || l.Fence == 0 || l.Attempt != 1 || len(l.ID) != 16):
			t.Errorf("%s: %+v", name, l)
		case held && (l.Holder.Host != "web1" || l.Holder.PID != 42 || l.Holder.Since.Before(began)):
			t.Errorf("%s: the holder is %+v", name, l.Holder)
		case (l.State == "done") != (l.Record != nil):
			t.Errorf("%s: the record is %+v", name, l.Record)
		case l.Record != nil && (l.Record.Bytes != 5 || l.Record.LeftMS < 1 || l.Record.AgeMS < 0 || len(l.ID) != 16):
			t.Errorf("%s: the record is %+v", name, l.Record)
		case name == "held" && *l.Waiters != 1, name == "pair" && l.Permits != 2:
			t.Errorf("%s: %d waiters, %d permits", name, *l.Waiters, l.Permits)
		}
	}
	want := []string{"abandoned: abandoned", "done: done", "held: held", "pair: held", "pair: held", "unknown: unknown", "waiting: waiting", "base64:/w==: held"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q; want %q", got, want)
	}
	for _, test := range []struct {
		args []string
		want int
	}{
		{[]string{"ls", "--json", "--state", "all", "--all-namespaces"}, 9},
		{[]string{"ls", "--json", "--namespace=n"}, 1},
		{[]string{"ls", "--json", "--glob=*e*"}, 2},
		{[]string{"ls", "--json", "--glob=*e*", "--state", "all"}, 3},
		{[]string{"ls", "--json", "--glob=no*"}, 0},
		{[]string{"show", "--json", "pair"}, 2},
		{[]string{"show", "--json", "--id=" + all[2].ID}, 1},
	} {
		if got := b.list(t, test.args...); len(got) != test.want {
			t.Errorf("%q: %d lines; want %d", test.args, len(got), test.want)
		}
	}
}

func TestListTable(t *testing.T) {
	t.Parallel()
	everyStore(t, checkListTable)
}

func checkListTable(t *testing.T, b *bench) {
	t.Parallel()
	situation(t, b)
	code, stdout, stderr := b.run(t, "ls", "--state", "all", "--all-namespaces")
	if code != 0 || !b.namesItsStore(stderr) {
		t.Fatalf("%d, %s", code, stderr)
	}
	ages := regexp.MustCompile(`[\d.]+m?s ago|[\d.]+m?s old|\b59m\d+s|1h0m0s`)
	got := ages.ReplaceAllString(stdout, "T")
	got = regexp.MustCompile(` {2,}`).ReplaceAllString(got, "|")
	got = regexp.MustCompile(`\|[0-9a-f]{12}\|`).ReplaceAllString(got, "|D|")
	want := `NAMESPACE|KEY|DIGEST|STATE|HOLDER|SINCE|LEFT|WAITERS|RESERVED|RECORD
-|abandoned|D|abandoned|web1 42 job|T|0s|0|0|-
-|done|D|done|-|-|-|0|0|5 bytes, T
-|held|D|held|web1 42 job|T|T|1|0|-
-|pair|D|held|web1 42|T|T|0|0|-
-|pair|D|held|"web1 42 \x1b[31m"|T|T|0|0|-
-|unknown|D|unknown|web1 42 job|T|0s|0|0|-
-|waiting|D|waiting|-|-|-|0|1|-
-|"\xff"|D|held|web1 42 job|T|T|0|0|-
n|elsewhere|D|held|web1 42 job|T|T|0|0|-
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	columns := func(text string) []int {
		return []int{strings.Index(text, " STATE"), strings.Index(text, " HOLDER"), strings.Index(text, " WAITERS")}
	}
	head, _, _ := strings.Cut(stdout, "\n")
	for row := range strings.Lines(stdout) {
		for _, column := range columns(head) {
			if row[column] != ' ' || row[column+1] == ' ' {
				t.Errorf("out of line at %d: %s", column, row)
			}
		}
	}
	empty := newBench(t)
	empty.inspector(t)
	if code, stdout, stderr := empty.run(t, "ls"); code != 0 || stdout != "" || !empty.namesItsStore(stderr) {
		t.Errorf("of nothing: %d, %q, %q", code, stdout, stderr)
	}
}

// TestRelease: release ends the leases of one key, of one holder, and of many keys.
func TestRelease(t *testing.T) {
	t.Parallel()
	everyStore(t, checkRelease)
}

func checkRelease(t *testing.T, b *bench) {
	t.Parallel()
	situation(t, b)
	s := b.inspector(t)
	held := entry(t, s, "held").Runs[0].ID
	pair := entry(t, s, "pair").Runs[0].ID
	tests := []struct {
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{[]string{"held"}, 1, "", "declined"},
		{[]string{"--yes", "urn:dibs:claim:" + pair}, 0, "pair is released\n", ""},
		{[]string{"--yes", "held"}, 0, "held is released: the next waiter gets it\n", ""}, // for a second
		{[]string{"--yes", "--glob", "*"}, 0, "pair is released\n\\xff is released\n", ""},
		{[]string{"--yes", "--glob", "*"}, 1, "", "there is no holder of a key that matches *"},
		{[]string{"--yes", "--id", held}, 1, "", "the store has no record, holder or waiter of the attempt " + held},
		{[]string{"--yes", "done"}, 1, "", "there is no holder of the key done"},
		{[]string{"--yes", "abandoned"}, 1, "", "there is no holder of the key abandoned"},
		{[]string{"--yes", "waiting"}, 1, "", "there is no holder of the key waiting"},
		{[]string{"--yes", "unknown"}, 1, "", "see dibs resolve --help"},
		{[]string{"--yes", "free"}, 1, "", "the store has no record, holder or waiter of the key free"},
		{[]string{"--yes"}, 64, "", "name the key in one way"},
		{[]string{"--yes", "--id", "x", "held"}, 64, "", "name the key in one way"},
		{[]string{"--yes", "--namespace", "n", "elsewhere"}, 0, "elsewhere is released\n", ""},
	}
	for _, test := range tests {
		code, stdout, stderr := b.run(t, append([]string{"release"}, test.args...)...)
		if slices.Contains(test.args, "--glob") { // unless the waiter's second is over
			stdout = strings.Replace(stdout, "held is released\n", "", 1)
		}
		if code != test.code || sorted(stdout) != sorted(test.stdout) || !strings.Contains(stderr, test.stderr) || test.stderr == "" && stderr != "" {
			t.Errorf("%q: %d, %q, %q; want %d, %q, %q", test.args, code, stdout, stderr, test.code, test.stdout, test.stderr)
		}
	}
	if e := entry(t, s, "done"); e.Record == nil {
		t.Error("a record went too")
	}
}

// sorted sorts the lines of a text: stores list in no particular order.
func sorted(text string) string {
	return strings.Join(slices.Sorted(strings.Lines(text)), "")
}

func TestForgetGlob(t *testing.T) { everyStore(t, checkForgetGlob) }

func checkForgetGlob(t *testing.T, b *bench) {
	situation(t, b)
	s := b.inspector(t)
	if code, _, stderr := b.run(t, "forget", "--glob=*", "done"); code != 64 {
		t.Errorf("two ways to name it: %d, %s", code, stderr)
	}
	if code, stdout, stderr := b.run(t, "forget", "--glob=*"); code != 1 || stdout != "" || entry(t, s, "done").Record == nil {
		t.Errorf("unasked: %d, %q, %q", code, stdout, stderr)
	}
	code, stdout, stderr := b.run(t, "forget", "--glob=*", "--yes")
	want := "abandoned is forgotten: its next request runs\ndone is forgotten: its next request runs\nunknown is forgotten: its next request runs\n"
	if got := strings.Split(stdout, "\n"); code != 0 || stderr != "" || strings.Join(slices.Sorted(slices.Values(got)), "\n") != "\n"+strings.TrimSuffix(want, "\n") {
		t.Errorf("%d, %q, %q", code, stdout, stderr)
	}
	if entry(t, s, "held").Condition != store.ConditionHeld || entry(t, s, "waiting").Reserved != 1 {
		t.Error("a lease or a place was lost")
	}
	if code, _, stderr := b.run(t, "forget", "--glob=*", "--yes"); code != 1 || !strings.Contains(stderr, "no key that matches * has a record to forget") {
		t.Errorf("twice: %d, %q", code, stderr)
	}
}

func TestPrune(t *testing.T) {
	b := newBench(t)
	// A store that does not prune by itself, so that there is something left.
	s, err := sqlitestore.Open(strings.TrimPrefix(b.store, "sqlite:"), &sqlitestore.Options{PruneEvery: -1})
	testkit.Must(t, err)
	for range 3 {
		c := store.Claim{Key: dibs.Key{Name: store.NewToken().ID()}, Token: store.NewToken(), TTL: time.Hour, Permits: 1, Weight: 1}
		answers, errs := make([]store.Answer, 1), make([]error, 1)
		testkit.Must(t, s.Claim(t.Context(), []store.Claim{c}, answers))
		testkit.Must(t, s.Settle(t.Context(), []store.Settlement{{Key: c.Key, Token: c.Token, Outcome: store.Keep, Retention: time.Millisecond}}, errs))
		testkit.Must(t, errs[0])
	}
	testkit.Must(t, s.Close())
	testkit.Eventually(t, "the end of the retention", func() bool { return len(b.list(t, "ls", "--json", "--state", "all")) == 0 })
	for _, want := range []string{"removed 3\n", "removed 0\n"} {
		if code, stdout, stderr := b.run(t, "prune"); code != 0 || stdout != want || stderr != "" {
			t.Errorf("%d, %q, %q; want %q", code, stdout, stderr, want)
		}
	}
}

// request is how the keys of one client and host begin.
const request = "http:AAAAAAAAAAAAAAAAAAAAAA:"

// TestResolveOnce: an operator gives callers of once the result of a run whose result was not stored,
// or is unknown, or lets them run again.
func TestResolveOnce(t *testing.T) { everyStore(t, checkResolveOnce) }

func checkResolveOnce(t *testing.T, b *bench) {
	t.Parallel()
	s := b.inspector(t)
	client, err := dibs.New(s, &dibs.Options{Namespace: "n"})
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Check(t, client.Close()) })
	print := dibs.Fingerprint{1}
	rate := func(key string) (float64, error) {
		return dibs.Once(t.Context(), client, key, &dibs.OnceOptions{AtMostOnce: true, Fingerprint: print}, func(context.Context) (float64, error) { return math.NaN(), nil })
	}
	for _, key := range []string{"given", "rerun", "forgotten"} {
		_, _ = rate(key)
	}
	lost, err := client.Acquire(t.Context(), "unknown", &dibs.AcquireOptions{AtMostOnce: true, Fingerprint: print})
	testkit.Must(t, err)
	testkit.Must(t, lost.Abandon(t.Context()))
	answer, err := idempotency.EncodeAnswer("http:", &idempotency.Answer{Status: 201, NotKept: true})
	testkit.Must(t, err)
	served, err := client.Acquire(t.Context(), request+"order", nil)
	testkit.Must(t, err)
	testkit.Must(t, served.Complete(t.Context(), answer, idempotency.DefaultRetention))

	for _, step := range []struct {
		args string
		code int
		want string
	}{
		{"show given", 0, "a run whose result could not be stored (json: unsupported value: NaN); see dibs resolve --help"},
		{"show given --json", 0, `"not_kept":"json: unsupported value: NaN"`},
		{"resolve given --status 201 --yes", 64, "use --result or --rerun"},
		{"resolve given --result 1.5", 1, "declined"},
		{"resolve given --result 1.5 --yes", 0, "given is done: callers get that result for 24h"},
		{"resolve given --result 2 --yes", 1, "there is nothing to resolve"},
		{"resolve rerun --rerun --yes", 0, "rerun is free: the next retry runs\n"},
		{"show rerun", 1, "the store has no record"},
		{"forget forgotten --yes", 0, "its next request runs"},
		{"resolve unknown --result 2.5 --yes", 0, "callers get that result"},
		{"resolve " + request + "order --result 1 --yes", 64, "use --status or --rerun"},
		{"resolve " + request + "order --status 201 --body paid --yes", 0, "retries get 201"},
		{"show " + request + "order", 0, "HTTP 201 with a body of 4 bytes"},
	} {
		code, stdout, stderr := b.run(t, append(strings.Fields(step.args), "--namespace", "n")...)
		if code != step.code || !strings.Contains(stdout+stderr, step.want) {
			t.Errorf("%s: %d %s%s; want %d and %q", step.args, code, stdout, stderr, step.code, step.want)
		}
	}
	for key, want := range map[string]float64{"given": 1.5, "unknown": 2.5} {
		if got, err := rate(key); err != nil || got != want {
			t.Errorf("%s: a caller gets %v, %v; want %v", key, got, err, want)
		}
	}
	if _, err := rate("rerun"); !isKeepError(err) {
		t.Errorf("after --rerun: %v", err)
	}
	for e, err := range s.List(t.Context(), store.Query{}) {
		testkit.Must(t, err)
		if e.Condition != store.ConditionDone {
			t.Errorf("%s is %s", e.Key.Name, e.Condition)
		}
	}
}

func isKeepError(err error) bool {
	_, ok := errors.AsType[*dibs.KeepError](err)
	return ok
}
