//go:build unix

package command_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

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
