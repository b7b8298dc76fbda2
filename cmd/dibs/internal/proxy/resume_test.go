package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dibs-go/dibs/idempotency/retry"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// roundTripper is a function that sends requests.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestTransportReadsOnThroughTheProxy: the client's connection breaks in the middle of a streamed
// answer, and the origin still writes. retry.Transport waits until the proxy has the rest, and
// reads on, up to the trailer.
func TestTransportReadsOnThroughTheProxy(t *testing.T) {
	for _, version := range []int{1, 2} {
		t.Run(fmt.Sprint("HTTP/", version), func(t *testing.T) {
			t.Parallel()
			more := make(chan struct{})
			var runs atomic.Int64
			origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				runs.Add(1)
				w.Header().Set("Content-Type", "text/event-stream")
				w.Header().Set("Trailer", "X-Sum")
				for i := range 6 {
					if i == 3 {
						_ = http.NewResponseController(w).Flush()
						<-more
					}
					_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
				}
				w.Header().Set("X-Sum", "21")
			}))
			t.Cleanup(origin.Close)
			p := start(t, origin.URL, "")
			var last net.Conn // to the proxy
			base := &http.Transport{DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
				conn, err = new(net.Dialer).DialContext(ctx, network, address)
				last = conn
				return conn, err
			}}
			t.Cleanup(base.CloseIdleConnections)
			if version == 2 {
				base.Protocols = new(http.Protocols)
				base.Protocols.SetUnencryptedHTTP2(true)
			}
			var statuses []int
			tr, err := retry.New(&retry.Options{Base: roundTripper(func(r *http.Request) (*http.Response, error) {
				res, err := base.RoundTrip(r)
				if err == nil {
					statuses = append(statuses, res.StatusCode)
				}
				if len(statuses) == 3 {
					close(more)
				}
				return res, err
			}), MaxTries: 20})
			testkit.Must(t, err)
			r := testkit.Request(t.Context(), t, http.MethodPost, p.url+"/events", strings.NewReader("x"))
			res, err := tr.RoundTrip(r)
			if err != nil || res.ProtoMajor != version {
				t.Fatal(res, err)
			}
			defer res.Body.Close()
			const whole = "data: 0\n\ndata: 1\n\ndata: 2\n\ndata: 3\n\ndata: 4\n\ndata: 5\n\n"
			half := make([]byte, len(whole)/2)
			if _, err := io.ReadFull(res.Body, half); err != nil {
				t.Fatal(err)
			}
			_ = last.Close()
			rest, err := io.ReadAll(res.Body)
			if got := string(half) + string(rest); got != whole || err != nil || res.Trailer.Get("X-Sum") != "21" {
				t.Errorf("read %q, %v, with the trailer %v", got, err, res.Trailer)
			}
			if n := len(statuses); n < 4 || statuses[0] != 200 || statuses[1] != 409 || statuses[2] != 409 || statuses[n-1] != 200 || runs.Load() != 1 {
				t.Errorf("the attempts were answered %v; the origin ran %d times", statuses, runs.Load())
			}
		})
	}
}
