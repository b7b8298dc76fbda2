package race

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/anystore"
)

func TestMain(m *testing.M) {
	Worker() // does not return in a process that a test started
	os.Exit(m.Run())
}

// open opens a store in a folder, in which the race has its file too.
func open(t *testing.T) (s *anystore.Store, url, folder string) {
	t.Helper()
	folder = t.TempDir()
	t.Setenv("TMPDIR", folder)
	url = "sqlite:" + filepath.Join(folder, "dibs.db")
	s, err := anystore.Open(t.Context(), url)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s, url, folder
}

// keys returns the store's keys.
func keys(t *testing.T, s *anystore.Store) (all []store.Entry) {
	t.Helper()
	in, err := s.Inspector()
	testkit.Must(t, err)
	for e, err := range in.List(t.Context(), store.Query{}) {
		testkit.Must(t, err)
		all = append(all, e)
	}
	return all
}

// checkNothing: the race leaves no key and no file.
func checkNothing(t *testing.T, s *anystore.Store, folder string) {
	t.Helper()
	if left := keys(t, s); len(left) > 0 {
		t.Errorf("left behind: %+v", left)
	}
	if left, err := filepath.Glob(filepath.Join(folder, "dibs-race-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// cutter is what a race writes to. It cancels the race once the text was written.
type cutter struct {
	text    string
	cancel  func()
	written strings.Builder
}

func (c *cutter) Write(p []byte) (int, error) {
	c.written.Write(p)
	if strings.Contains(c.written.String(), c.text) {
		c.cancel()
	}
	return len(p), nil
}

// TestInterrupted: a race that is cancelled returns why, starts no further workers, and
// leaves nothing behind.
func TestInterrupted(t *testing.T) {
	for _, point := range []string{"should become", "without a lock"} {
		t.Run("after "+point, func(t *testing.T) {
			s, url, folder := open(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w := &cutter{text: point, cancel: cancel}
			if err := Run(ctx, Options{Store: url}, w); !errors.Is(err, context.Canceled) {
				t.Errorf("the error is %v", err)
			}
			if _, after, _ := strings.Cut(w.written.String(), point); strings.Contains(after, "with dibs") {
				t.Errorf("it went on:\n%s", after)
			}
			checkNothing(t, s, folder)
		})
	}
}

// TestInterruptedHolding: a race that is cancelled while a worker holds the key leaves
// nothing behind. The worker thinks for an hour, so it is cancelled while it holds.
func TestInterruptedHolding(t *testing.T) {
	s, url, folder := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := number(filepath.Join(folder, "dibs-race-number"))
	testkit.Must(t, os.WriteFile(string(n), nil, 0o600))
	ended := make(chan error, 1)
	go func() {
		_, err := task{File: n, Think: time.Hour, Key: "k", Store: url}.run(ctx)
		ended <- err
	}()
	held := func() bool {
		all := keys(t, s)
		return len(all) == 1 && all[0].Condition == store.ConditionHeld && all[0].Waiters == workers-1
	}
	testkit.Eventually(t, "a worker holds the key while the others wait", held)
	cancel()
	if err := testkit.Await(t, "the end of the race", ended); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	testkit.Check(t, n.remove())
	checkNothing(t, s, folder)
}
