package slow_test

import (
	"io"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/slow"
)

// TestReader: a client may pause, and must send enough in each span of the pause, however much it sent
// before.
func TestReader(t *testing.T) {
	const pause, rate = 30 * time.Second, 500
	for name, test := range map[string]struct {
		first, part int           // bytes at once, and then
		every       time.Duration // a part
		parts       int
		err         error
		took        time.Duration
	}{
		"at once":                      {first: 8 << 20},
		"with pauses":                  {first: 8 << 20, part: 15_000, every: 29 * time.Second, parts: 100, took: 2900 * time.Second},
		"fast enough":                  {part: 600, every: time.Second, parts: 1000, took: 1000 * time.Second},
		"much, then nothing":           {first: 8 << 20, part: 1, every: time.Hour, parts: 1, err: os.ErrDeadlineExceeded, took: pause},
		"much, then a byte a second":   {first: 8 << 20, part: 1, every: time.Second, parts: 100_000, err: os.ErrDeadlineExceeded, took: pause},
		"a byte in ten seconds":        {part: 1, every: 10 * time.Second, parts: 100, err: os.ErrDeadlineExceeded, took: pause},
		"a little, then a byte a time": {part: 14_000, every: 29 * time.Second, parts: 100, err: os.ErrDeadlineExceeded, took: pause},
	} {
		synctest.Test(t, func(t *testing.T) {
			body := testkit.NewSlowBody()
			sent := make(chan int, 1)
			go func() {
				n, _ := body.To.Write(make([]byte, test.first))
				for range test.parts {
					time.Sleep(test.every)
					m, err := body.To.Write(make([]byte, test.part))
					if n += m; err != nil {
						break
					}
				}
				body.To.Close()
				sent <- n
			}()
			began := time.Now()
			n, err := io.Copy(io.Discard, slow.NewReader(body, testkit.Request(t.Context(), t, http.MethodPost, "http://x/", body.PipeReader), pause, rate))
			took := time.Since(began)
			if err != test.err || took != test.took {
				t.Errorf("%s: %v after %v; want %v after %v", name, err, took, test.err, test.took)
			}
			if most := pause + time.Duration(n/rate+1)*time.Second; took > most {
				t.Errorf("%s: %d bytes took %v, of at most %v", name, n, took, most)
			}
			body.Close()
			<-sent
		})
	}
}
