//go:build unix

package upstream

import (
	"net/http"
	"slices"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestStray: bytes after an answer are not the answer to the next request.
func TestStray(t *testing.T) {
	t.Parallel()
	const stray = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstray"
	for name, said := range map[string]string{
		"after a 204":             "HTTP/1.1 204 No Content\r\n\r\n" + stray,
		"after a body":            "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n" + stray,
		"a part of its header":    "HTTP/1.1 204 No Content\r\n\r\n" + stray[:20],
		"what is not HTTP at all": "HTTP/1.1 204 No Content\r\n\r\n" + "\x00",
		"an informational answer": "HTTP/1.1 204 No Content\r\n\r\n" + "HTTP/1.1 103 Early Hints\r\n\r\n" + stray,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			origin := newRude(t, slices.Repeat([]turn{say("%s", said)}, 1000))
			tr := newTransport(t, origin.url, nil)
			for i := range 300 {
				method := []string{http.MethodPost, http.MethodGet, http.MethodDelete}[i%3]
				if status, text, err := roundTrip(tr, request(t, tr, method, "")); status != http.StatusNoContent || err != nil {
					t.Fatalf("request %d got %d %q %v", i, status, text, err)
				}
			}
			testkit.Eventually(t, "the requests arrive", func() bool { return len(origin.requests()) >= 300 })
			if n := len(origin.requests()); n != 300 {
				t.Errorf("the origin saw %d requests", n)
			}
		})
	}
}
