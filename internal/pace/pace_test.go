package pace

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// book is a testing.TB that keeps what is reported.
type book struct {
	testing.TB
	errors, logs []string
}

func (b *book) Helper()                    {}
func (b *book) Error(args ...any)          { b.errors = append(b.errors, fmt.Sprint(args...)) }
func (b *book) Logf(f string, args ...any) { b.logs = append(b.logs, fmt.Sprintf(f, args...)) }

// TestRetry: one try that succeeds is enough, and so is one that fails without an excuse.
// Of those with one five are made.
func TestRetry(t *testing.T) {
	for name, test := range map[string]struct {
		failures int           // of the first tries
		most     time.Duration // no time goes by, so that with -1 the machine always stood still
		tries    int
		fails    bool
	}{
		"succeeds":                     {0, -1, 1, false},
		"fails without an excuse":      {9, time.Hour, 1, true},
		"fails with an excuse, twice":  {2, -1, 3, false},
		"fails with an excuse, always": {9, -1, 5, true},
	} {
		b := &book{TB: t}
		n := 0
		Retry(b, test.most, func() error {
			if n++; n <= test.failures {
				return errors.New("it failed")
			}
			return nil
		})
		if n != test.tries || (len(b.errors) > 0) != test.fails || len(b.logs) != n-1 {
			t.Errorf("%s: %d tries, %q, %q", name, n, b.errors, b.logs)
		}
	}
}

// TestWatch: it looks often, and where time goes by only while all wait it finds nothing.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		stop := Watch(func(d time.Duration) {
			if looks++; d != 0 {
				t.Errorf("it stood still for %v", d)
			}
		})
		time.Sleep(time.Second)
		stop()
		if looks < 100 {
			t.Errorf("it looked %d times", looks)
		}
	})
}
