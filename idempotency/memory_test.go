package idempotency_test

import (
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestAThousandSmallRequests: without any option a thousand requests run at once.
func TestAThousandSmallRequests(t *testing.T) {
	gate := newGate()
	g := newRig(t, nil, gate.ServeHTTP)
	var answers []<-chan *httptest.ResponseRecorder
	for i := range 1000 {
		answers = append(answers, g.sendLater(withKey(strconv.Itoa(i)), withBody(strings.Repeat("x", 10_000))))
		<-gate.entered
	}
	close(gate.open)
	for _, answer := range answers {
		isFresh(t, <-answer, 201)
	}
}

// TestTemporaryFilesAreBounded: bodies that come slowly do not fill the folder of temporary files, and
// nothing is left of them.
func TestTemporaryFilesAreBounded(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	g := newRig(t, idempotency.Options{MaxStored: 10, MaxBody: 1000, MaxBodyMemory: 250}.InMemory(10), nil)
	const uploads, fit = 13, 3 // of 300 bytes in 1000
	var bodies []*io.PipeWriter
	var answers []<-chan *httptest.ResponseRecorder
	for i := range uploads {
		body, to := io.Pipe()
		bodies, answers = append(bodies, to), append(answers, g.sendLater(withKey(strconv.Itoa(i)), withChunks(body)))
		_, err := io.WriteString(to, strings.Repeat("x", 300))
		testkit.Must(t, err)
	}
	testkit.Eventually(t, "the refusals", func() bool { return len(g.seen()) == uploads-fit })
	for _, to := range bodies {
		testkit.Must(t, to.Close())
	}
	statuses := map[int]int{}
	for _, answer := range answers {
		statuses[(<-answer).Code]++
	}
	if statuses[503] != uploads-fit || statuses[201] != fit {
		t.Errorf("the answers are %v", statuses)
	}
	isFresh(t, g.send(withKey("whole"), withBody(strings.Repeat("x", 1000))), 201)
}

// TestRecordsCountBeforeTheyAreRead: the store is not asked for more long answers at once than there is
// memory for, and all retries get theirs.
func TestRecordsCountBeforeTheyAreRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make([]byte, 2000)
		_, _ = rand.Read(answer)
		g := newRig(t, idempotency.Options{MaxStored: 4000, MaxBodyMemory: 16_000}.InMemory(10), func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(answer)
		})
		first := g.send(withBody(""))
		var now, most atomic.Int64
		g.store.fail(func(_ context.Context, op string) error {
			if op == "claim" {
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(100 * time.Millisecond)
				now.Add(-1)
			}
			return nil
		})
		var retries []<-chan *httptest.ResponseRecorder
		for range 10 {
			retries = append(retries, g.sendLater(withBody("")))
		}
		for _, retry := range retries {
			isReplay(t, <-retry, first)
		}
		if n := most.Load(); n != 2 { // of 2.1 kB in 4 kB, and one more
			t.Errorf("%d records were read at once; want 2", n)
		}
		g.ran(1)
	})
}
