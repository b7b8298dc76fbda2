package anystore

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestNothingIsLeft: however a program uses its client, no lease, place, goroutine, file or
// connection is left.
func TestNothingIsLeft(t *testing.T) {
	for _, url := range []string{"memory:", "sqlite:" + filepath.Join(t.TempDir(), "dibs.db")} {
		checkNothingIsLeft(t, url, nil)
	}
}

// checkNothingIsLeft: connections, unless nil, describes the server's connections.
func checkNothingIsLeft(t *testing.T, url string, connections func() string) {
	t.Helper()
	scheme, _, _ := strings.Cut(url, ":")
	t.Run(scheme, func(t *testing.T) {
		migrated(t, url)
		files := openFiles(t)
		store, err := Open(t.Context(), url, ToUse)
		testkit.Must(t, err)
		for range 3 {
			client, err := dibs.New(store.Store, &dibs.Options{TTL: time.Hour, Timeout: testkit.Limit})
			testkit.Must(t, err)
			for name, use := range uses {
				use(t, client)
				if left := remains(t, store); left != "" {
					t.Errorf("%s leaves %s", name, left)
				}
			}
			closeInTheMiddle(t, client)
			if left := remains(t, store); left != "" {
				t.Errorf("closing in the middle leaves %s", left)
			}
		}
		testkit.Check(t, store.Close())
		soon(t, "goroutines", func() string { return ours() })
		if connections != nil {
			soon(t, "connections", connections)
		}
		soon(t, "files", func() string {
			return strings.Join(slices.DeleteFunc(openFiles(t), func(f string) bool { return slices.Contains(files, f) }), ", ")
		})
	})
}

var errSection = errors.New("the section failed")

// uses are ways in which a program uses its client.
var uses = map[string]func(t *testing.T, c *dibs.Client){
	"repeated use": func(t *testing.T, c *dibs.Client) {
		for range 100 {
			is(t, c.Do(t.Context(), "again", nothing), nil)
		}
	},
	"nested use": func(t *testing.T, c *dibs.Client) {
		is(t, c.Do(t.Context(), "a", func(ctx context.Context) error {
			return c.Do(ctx, "b", func(ctx context.Context) error {
				is(t, c.Do(ctx, "a", nothing), dibs.ErrHeld)
				is(t, c.TryDo(ctx, "b", nothing), dibs.ErrHeld)
				return c.DoAll(ctx, []string{"d", "c", "d"}, nothing)
			})
		}), nil)
	},
	"a section that fails": func(t *testing.T, c *dibs.Client) {
		is(t, c.Do(t.Context(), "a", func(context.Context) error { return errSection }), errSection)
		is(t, c.DoAll(t.Context(), []string{"a", "b"}, func(context.Context) error { return errSection }), errSection)
		_, err := dibs.Once(t.Context(), c, "once", nil, func(context.Context) (int, error) { return 0, errSection })
		is(t, err, errSection)
	},
	"a panic": func(t *testing.T, c *dibs.Client) {
		outcry := func(context.Context) error { panic(errSection) }
		for name, f := range everyWayIn(t, c, outcry) {
			func() {
				defer func() {
					if p := recover(); p != errSection {
						t.Errorf("%s recovered %v", name, p)
					}
				}()
				f()
			}()
		}
	},
	"runtime.Goexit": func(t *testing.T, c *dibs.Client) {
		for name, f := range everyWayIn(t, c, func(context.Context) error { runtime.Goexit(); return nil }) {
			var exited sync.WaitGroup
			returned := false
			exited.Go(func() {
				f()
				returned = true
			})
			exited.Wait()
			if returned {
				t.Errorf("%s went on after Goexit", name)
			}
		}
	},
	"a context that ended before": func(t *testing.T, c *dibs.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		is(t, c.Do(ctx, "a", nothing), context.Canceled)
		is(t, c.DoAll(ctx, []string{"a", "b"}, nothing), context.Canceled)
	},
	"a context that ends in the section": func(t *testing.T, c *dibs.Client) {
		ctx, cancel := context.WithCancel(t.Context())
		is(t, c.Do(ctx, "a", func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}), context.Canceled)
	},
	"contexts that end while they wait": func(t *testing.T, c *dibs.Client) {
		is(t, c.Do(t.Context(), "a", func(context.Context) error {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer cancel()
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() { is(t, c.Do(ctx, "a", nothing), context.DeadlineExceeded) })
				all.Go(func() { is(t, c.DoAll(ctx, []string{"0", "a", "z"}, nothing), context.DeadlineExceeded) })
			}
			all.Wait()
			return nil
		}), nil)
	},
	"a wait that is over": func(t *testing.T, c *dibs.Client) {
		is(t, c.Do(t.Context(), "a", func(context.Context) error {
			_, err := c.Acquire(t.Context(), "a", &dibs.AcquireOptions{Wait: 5 * time.Millisecond})
			is(t, err, dibs.ErrHeld)
			return nil
		}), nil)
	},
	"reserved places": func(t *testing.T, c *dibs.Client) {
		redeemed, _, err := c.Reserve(t.Context(), "a", time.Minute, nil)
		is(t, err, nil)
		dropped, _, err := c.Reserve(t.Context(), "a", time.Minute, nil)
		is(t, err, nil)
		lease, err := c.Redeem(t.Context(), redeemed, nil)
		is(t, err, nil)
		is(t, c.CancelPlace(t.Context(), dropped), nil)
		is(t, lease.Release(), nil)
		is(t, lease.Release(), nil)
	},
	"a lease that was settled by itself": func(t *testing.T, c *dibs.Client) {
		is(t, c.Do(t.Context(), "a", func(ctx context.Context) error {
			lease, _ := dibs.FromContext(ctx)
			return lease.Release()
		}), nil)
	},
}

// everyWayIn runs the section under one key, under several, and once.
func everyWayIn(t *testing.T, c *dibs.Client, section func(context.Context) error) map[string]func() {
	return map[string]func(){
		"Do":     func() { _ = c.Do(t.Context(), "a", section) },
		"nested": func() { _ = c.Do(t.Context(), "a", func(ctx context.Context) error { return c.Do(ctx, "b", section) }) },
		"DoAll":  func() { _ = c.DoAll(t.Context(), []string{"a", "b", "c"}, section) },
		"Once": func() {
			_, _ = dibs.Once(t.Context(), c, "once", nil, func(ctx context.Context) (int, error) { return 0, section(ctx) })
		},
		"Step": func() {
			_ = c.Do(t.Context(), "a", func(ctx context.Context) error {
				_, err := dibs.Step(ctx, "step", func(ctx context.Context) (int, error) { return 0, section(ctx) })
				return err
			})
		},
	}
}

func nothing(context.Context) error { return nil }

func is(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%v; want %v", err, want)
	}
}

// closeInTheMiddle closes the client while it has holders and waiters.
func closeInTheMiddle(t *testing.T, c *dibs.Client) {
	t.Helper()
	var all sync.WaitGroup
	for _, key := range []string{"a", "b"} {
		held := make(chan struct{})
		all.Go(func() {
			is(t, c.Do(t.Context(), key, func(ctx context.Context) error {
				close(held)
				<-ctx.Done()
				return context.Cause(ctx)
			}), dibs.ErrClosed)
		})
		<-held
		for range 4 {
			all.Go(func() { is(t, c.Do(t.Context(), key, nothing), dibs.ErrClosed) })
		}
	}
	// The waiters wait, or are about to: both must end.
	testkit.Check(t, c.Close())
	all.Wait()
	is(t, c.Do(t.Context(), "a", nothing), dibs.ErrClosed)
}

// remains describes the store's keys. It waits for undoing in the background.
func remains(t *testing.T, s *Store) string {
	t.Helper()
	in, err := s.Inspector()
	testkit.Must(t, err)
	return settles(func() string {
		var left []string
		for e, err := range in.List(t.Context(), store.Query{}) {
			if err != nil {
				return err.Error()
			}
			left = append(left, string(e.Condition)+" "+e.Key.Name)
		}
		return strings.Join(left, ", ")
	})
}

// settles waits until f returns "", and returns its text at the limit.
func settles(f func() string) string {
	deadline := time.Now().Add(testkit.Limit)
	for {
		said := f()
		if said == "" || time.Now().After(deadline) {
			return said
		}
		<-time.After(2 * time.Millisecond)
	}
}

func soon(t *testing.T, what string, f func() string) {
	t.Helper()
	if left := settles(f); left != "" {
		t.Errorf("%s are left: %s", what, left)
	}
}

// ours returns the stacks of goroutines with this project's code, without this test's and those of
// parallel tests, which begin after this one. With GOEXPERIMENT=goroutineleakprofile it adds the
// leaks that the runtime knows.
func ours() string {
	buf := make([]byte, 1<<20)
	var left []string
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if (strings.Contains(stack, "dibs-go/dibs") || strings.Contains(stack, "redis/rueidis") || strings.Contains(stack, "jackc/") || strings.Contains(stack, "go-sql-driver/")) && !strings.Contains(stack, "internal/prove/servertest") && !strings.Contains(stack, "NothingIsLeft") && !strings.Contains(stack, "testing.(*T).Parallel(") {
			left = append(left, stack)
		}
	}
	if leaks := pprof.Lookup("goroutineleak"); leaks != nil {
		var text bytes.Buffer
		if err := leaks.WriteTo(&text, 1); err != nil {
			return err.Error()
		}
		if strings.Contains(text.String(), "dibs-go/dibs") {
			left = append(left, text.String())
		}
	}
	return strings.Join(left, "\n\n")
}

// openFiles names the open files of this process.
func openFiles(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/dev/fd")
	testkit.Must(t, err)
	var files []string
	for _, e := range entries {
		if target, err := os.Readlink("/dev/fd/" + e.Name()); err == nil && strings.HasPrefix(target, "/") {
			files = append(files, e.Name()+" "+target)
		}
	}
	return files
}
