package command_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestChangedMeanwhile: while the operator reads the question, other attempts come. The answer is
// about those that the question is about, and about no others.
func TestChangedMeanwhile(t *testing.T) {
	for _, test := range []struct {
		name, says string
		args       []string // %ID% is the ID of the first attempt
		before     store.Settlement
	}{
		{"forgetByKey", "has changed meanwhile: nothing was forgotten", []string{"forget", "k"}, store.Settlement{Outcome: store.Keep, Data: []byte("1"), Retention: time.Hour}},
		{"forgetByID", "has changed meanwhile: nothing was forgotten", []string{"forget", "--id", "%ID%"}, store.Settlement{Outcome: store.Keep, Data: []byte("1"), Retention: time.Hour}},
		{"forgetByGlob", "has changed meanwhile: nothing was forgotten", []string{"forget", "--glob", "k*"}, store.Settlement{Outcome: store.Abandon}},
		{"release", "there is no holder of the key k any more", []string{"release", "k"}, store.Settlement{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t)
			s := b.inspector(t)
			key := store.Key{Name: "k"}
			claim := func(token store.Token) {
				t.Helper()
				answers := make([]store.Answer, 1)
				testkit.Must(t, s.Claim(t.Context(), []store.Claim{{Key: key, Token: token, TTL: time.Hour, Permits: 1, Weight: 1, AtMostOnce: true}}, answers))
				if answers[0].State != store.Granted {
					t.Fatalf("the claim found %+v", answers[0])
				}
			}
			settle := func(token store.Token, x store.Settlement) {
				t.Helper()
				x.Key, x.Token = key, token
				errs := make([]error, 1)
				testkit.Must(t, s.Settle(t.Context(), []store.Settlement{x}, errs))
				testkit.Must(t, errs[0])
			}
			first, second := store.NewToken(), store.NewToken()
			claim(first)
			if test.name != "release" {
				settle(first, test.before)
			}
			for i := range test.args {
				test.args[i] = strings.ReplaceAll(test.args[i], "%ID%", first.ID())
			}
			keyboard, terminal := openTerminal(t)
			p := b.command(test.args...)
			p.Stdin = terminal
			p.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
			p.begin(t)
			testkit.Must(t, terminal.Close())
			testkit.Eventually(t, "the question", func() bool { return strings.Contains(p.stderr.String()+p.stdout.String(), "?") })
			_, err := s.ForceRelease(t.Context(), key, "")
			testkit.Must(t, err)
			claim(second)
			if test.name != "release" {
				settle(second, store.Settlement{Outcome: store.Abandon})
				if test.before.Outcome == store.Keep { // somebody else has forgotten the record
					_, err := s.Forget(t.Context(), key, first.ID())
					testkit.Must(t, err)
				}
			}
			_, err = keyboard.WriteString("y\n")
			testkit.Must(t, err)
			if code := p.code(t); code != 1 || !strings.Contains(p.stderr.String(), test.says) {
				t.Errorf("it exited with %d and said %q", code, p.stderr.String())
			}
			if e := entry(t, s, "k"); len(e.Runs) != 1 || e.Runs[0].ID != second.ID() {
				t.Errorf("after that the key is %+v; want the second attempt", e)
			}
		})
	}
}
