package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
)

// batch is a batch of messages such as "k/1", a key and an ID, and what ran of it.
type batch struct {
	mu            sync.Mutex
	ran           []string
	running, most int
}

func describe(message string) jobs.Job {
	key, _, _ := strings.Cut(message, "/")
	return jobs.Job{Kind: "test", ID: message, Key: key, Final: func(err error) bool { return errors.Is(err, errFinal) }}
}

var errFinal = errors.New("a failure for good")

// run takes a second, and fails as the message says.
func (b *batch) run(_ context.Context, message string) error {
	b.mu.Lock()
	b.ran = append(b.ran, message)
	b.running++
	b.most = max(b.most, b.running)
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.running--
	}()
	time.Sleep(time.Second)
	switch {
	case strings.HasSuffix(message, "fails"):
		return errors.New("a failure")
	case strings.HasSuffix(message, "final"):
		return errFinal
	case strings.HasSuffix(message, "exits"):
		runtime.Goexit()
	}
	return nil
}

// result is what is said of each message: ok, back or failed.
func result(errs []error) (text []string) {
	for _, err := range errs {
		switch _, back := errors.AsType[*jobs.RequeueError](err); {
		case err == nil:
			text = append(text, "ok")
		case back:
			text = append(text, "back")
		default:
			text = append(text, "failed")
		}
	}
	return text
}

// TestBatch: a failure keeps back the later messages of its key, where the order counts.
func TestBatch(t *testing.T) {
	messages := []string{"a/1", "b/1", "a/2 fails", "/1 fails", "a/3", "c/1 final", "c/2", "/2", "d/1 exits", "d/2"}
	for _, c := range []struct {
		name string
		o    jobs.Options
		want string
	}{
		{"Requeue", jobs.Options{}, "ok ok failed failed back failed ok ok failed failed"},
		{"Wait", jobs.Options{Policy: jobs.Wait, Unordered: true}, "ok ok failed failed back failed ok ok failed failed"},
		{"LetPass", jobs.Options{Failed: jobs.LetPass}, "ok ok failed failed ok failed ok ok failed failed"},
		{"Skip", jobs.Options{Policy: jobs.Skip}, "ok ok failed failed ok failed ok ok failed failed"},
	} {
		simulateAs(t, c.name, func(t *testing.T, f *fixture) {
			var b batch
			start := time.Now()
			handle := jobs.HandleBatch(f.mutex(&c.o), 3, describe, b.run)
			if got := strings.Join(result(handle(t.Context(), messages)), " "); got != c.want {
				t.Errorf("%s\n want %s", got, c.want)
			}
			if b.most != 3 || time.Since(start) > 5*time.Second {
				t.Errorf("%d messages ran at once, in %v; want 3", b.most, time.Since(start))
			}
			var a []string
			for _, message := range b.ran {
				if strings.HasPrefix(message, "a/") {
					a = append(a, message)
				}
			}
			if !slices.IsSorted(a) {
				t.Errorf("the messages of a key ran in the order %q", a)
			}
			f.empty()
		})
	}
}

// TestBatchOfABusyKey: the messages of a key that is held come back after one wait, and
// those of other keys run.
func TestBatchOfABusyKey(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		var b batch
		m := f.mutex(&jobs.Options{Policy: jobs.Wait, Wait: 5 * time.Second})
		handle := jobs.HandleBatch(m, 2, describe, b.run)
		lease, start := f.held("a"), time.Now()
		messages := []string{"a/1", "b/1", "a/2", "a/3"}
		if got := fmt.Sprint(result(handle(t.Context(), messages))); got != "[back ok back back]" {
			t.Error(got)
		}
		if took := time.Since(start); took > 6*time.Second {
			t.Errorf("the batch took %v, want about one wait of 5 s", took)
		}
		testkit.Must(t, lease.Release())
		if got := fmt.Sprint(result(handle(t.Context(), messages)), b.ran); got != "[ok ok ok ok] [b/1 a/1 b/1 a/2 a/3]" && got != "[ok ok ok ok] [b/1 b/1 a/1 a/2 a/3]" {
			t.Error(got)
		}
		f.empty()
	})
}

// TestBatchInAnotherOrder: tickets decide, even if the batch has another order each time.
func TestBatchInAnotherOrder(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		var b batch
		m := f.mutex(nil)
		tickets := map[string]string{}
		for _, message := range []string{"a/1", "a/2", "a/3"} {
			tickets[message] = f.ticket(m, "a")
		}
		handle := jobs.HandleBatch(m, 1, func(message string) jobs.Job {
			j := describe(message)
			j.Ticket = tickets[message]
			return j
		}, b.run)
		for left := []string{"a/3", "a/2", "a/1"}; len(left) > 0; {
			errs := handle(t.Context(), left)
			var again []string
			for i, err := range errs {
				if err != nil {
					again = append(again, left[i])
				}
			}
			if len(again) == len(left) {
				t.Fatalf("no message of %q ran", left)
			}
			left = again
		}
		if !slices.Equal(b.ran, []string{"a/1", "a/2", "a/3"}) {
			t.Errorf("they ran in the order %q", b.ran)
		}
		f.empty()
	})
}
