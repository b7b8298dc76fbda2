package page

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

// TestASlowSignIn: a sign-in that does not arrive ends in seconds, and a long one is not read.
func TestASlowSignIn(t *testing.T) {
	for name, test := range map[string]struct {
		send   func(io.Writer)
		status int
		took   time.Duration
	}{
		"nothing":     {func(w io.Writer) {}, http.StatusRequestTimeout, maxPause},
		"a beginning": {func(w io.Writer) { _, _ = io.WriteString(w, `{"token":"`) }, http.StatusRequestTimeout, maxPause},
		"a byte now and then": {func(w io.Writer) {
			for range 100 {
				_, _ = io.WriteString(w, " ")
				time.Sleep(time.Second)
			}
		}, http.StatusRequestTimeout, maxPause},
		"a mebibyte": {func(w io.Writer) { _, _ = io.WriteString(w, strings.Repeat(" ", 1<<20)) }, http.StatusBadRequest, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, err := memstore.New(nil)
			testkit.Must(t, err)
			defer s.Close()
			h := New(s, &Options{SignIn: func(string) string { return "" }})
			defer h.Close()
			body := testkit.NewSlowBody()
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				test.send(body.To)
			}()
			r := testkit.Request(t.Context(), t, http.MethodPost, "http://localhost/page/sign-in", body.PipeReader)
			r.Header.Set("Content-Type", "application/json")
			began := time.Now()
			h.ServeHTTP(body, r)
			if took := time.Since(began); body.Code != test.status || took != test.took {
				t.Errorf("%s: it is %d after %v; want %+v", name, body.Code, took, test)
			}
			body.CloseWithError(io.ErrClosedPipe)
			<-sent
		})
	}
}
