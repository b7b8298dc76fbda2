package race

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/failpoint"
	"github.com/dibs-go/dibs/internal/stores"
)

func TestMain(m *testing.M) {
	Worker() // does not return in a process that a test started
	os.Exit(m.Run())
}

// open opens a store of which files stay in a folder of their own.
func open(t *testing.T, scheme string) (s *stores.Store, url, folder string) {
	t.Helper()
	folder = t.TempDir()
	t.Setenv("TMPDIR", folder)
	if url = scheme + ":"; scheme == "sqlite" {
		url += filepath.Join(folder, "dibs.db")
	}
	s, err := stores.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, url, folder
}

// keys returns what the store knows of keys.
func keys(t *testing.T, s *stores.Store) (all []dibs.Entry) {
	t.Helper()
	in, err := s.Inspector()
	if err != nil {
		t.Fatal(err)
	}
	for e, err := range in.List(t.Context(), dibs.Query{}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

// checkNothing: neither keys nor files of a race are left.
func checkNothing(t *testing.T, s *stores.Store, folder string) {
	t.Helper()
	if left := keys(t, s); len(left) > 0 {
		t.Errorf("left behind: %+v", left)
	}
	if left, err := filepath.Glob(filepath.Join(folder, "dibs-race-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

// cutter is where a race writes, and ends its context when it has written a text.
type cutter struct {
	text   string
	cancel func()
	said   strings.Builder
}

func (c *cutter) Write(p []byte) (int, error) {
	c.said.Write(p)
	if strings.Contains(c.said.String(), c.text) {
		c.cancel()
	}
	return len(p), nil
}

// TestInterrupted: a race that is ended between two of its ways says why, begins no other,
// and leaves nothing behind.
func TestInterrupted(t *testing.T) {
	for _, test := range []struct{ scheme, point string }{
		{"memory", "should become"}, {"memory", "without a lock"},
		{"sqlite", "should become"}, {"sqlite", "without a lock"}, {"sqlite", "row lock"}, {"sqlite", "version column"},
	} {
		t.Run(test.scheme+" after "+test.point, func(t *testing.T) {
			s, url, folder := open(t, test.scheme)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w := &cutter{text: test.point, cancel: cancel}
			if err := Run(ctx, Options{Store: s, URL: url}, w); !errors.Is(err, context.Canceled) {
				t.Errorf("the error is %v", err)
			}
			if _, after, _ := strings.Cut(w.said.String(), test.point); strings.Contains(after, "with dibs") {
				t.Errorf("it went on:\n%s", after)
			}
			checkNothing(t, s, folder)
		})
	}
}

// TestInterruptedHolding: a race that is ended while a worker holds the key leaves nothing
// behind. The worker thinks for an hour, so it is in the middle.
func TestInterruptedHolding(t *testing.T) {
	for name, test := range map[string]struct {
		scheme    string
		processes bool
	}{"memory": {"memory", false}, "sqlite": {"sqlite", false}, "sqlite, processes": {"sqlite", true}} {
		t.Run(name, func(t *testing.T) {
			s, url, folder := open(t, test.scheme)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			r := &race{o: Options{Store: s, URL: url, Processes: test.processes}, key: "k"}
			var err error
			if r.number, _, err = newNumber(ctx, s); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				_, err := r.run(ctx, lease, time.Hour)
				ended <- err
			}()
			held := func() bool {
				all := keys(t, s)
				return len(all) == 1 && all[0].Condition == dibs.ConditionHeld && all[0].Waiters == workers-1
			}
			for deadline := time.Now().Add(failpoint.Limit); !held(); {
				if time.Now().After(deadline) {
					t.Fatal("nobody holds the key while the others wait")
				}
				<-time.After(5 * time.Millisecond)
			}
			cancel()
			select {
			case err := <-ended:
				if err == nil {
					t.Error("it ended without an error")
				}
			case <-time.After(failpoint.Limit):
				t.Fatal("it hangs")
			}
			if err := r.number.remove(ctx); err != nil {
				t.Error(err)
			}
			r.number.close()
			checkNothing(t, s, folder)
		})
	}
}
