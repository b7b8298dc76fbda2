package serve

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestCanceled: a call is canceled if its client went away before it was answered, and not if it
// went away with its answer, while the handler had not ended yet.
func TestCanceled(t *testing.T) {
	r := start(t, inMemory(t), nil)
	for _, test := range []struct {
		before, answers bool
		status          int
		problem, about  string
	}{
		{false, true, 400, "invalid", "after its answer"},
		{true, true, 0, "canceled", "before its answer, which nobody reads"},
		{true, false, 0, "canceled", "before its answer"},
	} {
		var got Call
		r.server.hooks.Call = func(c Call) { got = c }
		ctx, leave := context.WithCancel(t.Context())
		r.server.logged(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if test.before {
				leave()
			}
			if test.answers {
				exchangeOf(r.Context()).call.Problem = "invalid"
				w.WriteHeader(400)
			}
			leave()
		})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "POST", "/v1/claim", nil))
		if got.Status != test.status || got.Problem != test.problem {
			t.Errorf("the client leaves %s: %d %s; want %d %s", test.about, got.Status, got.Problem, test.status, test.problem)
		}
	}
}
