package asynqjobs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
)

// words are texts like those that this package and Asynq store with a task.
func words() map[string]string {
	id := "7"
	return map[string]string{
		"refusal":            refusal,
		"refusal and a mark": fmt.Sprintf("%s (%s)", refusal, newMark()),
		"requeued":           (&requeueError{&jobs.RequeueError{}, " (parked, " + id + ")"}).Error(),
		"names":              strings.Join([]string{headerParked, headerKey, fieldRefused, "dibs-parked " + id}, " "),
	}
}

// TestPanickingTaskWithOurWordsRunsOnce: whatever a task's payload and headers say, it does not
// run again after it panicked on its last attempt, until an operator makes it run.
func TestPanickingTaskWithOurWordsRunsOnce(t *testing.T) {
	t.Parallel()
	for name, text := range words() {
		t.Run(name, func(t *testing.T) {
			f := parallel(t, nil)
			f.serve(t, asynq.Config{}, func(context.Context, *asynq.Task) error {
				f.did.add("ran")
				panic(text)
			})
			task := NewTask("job", []byte(text), "k", asynq.MaxRetry(0), asynq.TaskID("7"))
			task.Headers = map[string]string{"note": text}
			info := f.enqueue(t, task)
			f.becomes(t, info.ID, asynq.TaskStateArchived)
			f.did.is(t, "ran")
			testkit.Must(t, f.inspector.RunTask("default", info.ID))
			f.did.is(t, "ran", "ran")
		})
	}
}

// TestFailedTaskWithOurWordsWaits: whatever a task's payload, headers and errors say, it waits
// for its RetryDelayFunc when it has failed, even if a worker had parked it before.
func TestFailedTaskWithOurWordsWaits(t *testing.T) {
	t.Parallel()
	for name, text := range words() {
		t.Run(name, func(t *testing.T) {
			f := parallel(t, nil)
			config := asynq.Config{RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour }}
			f.serve(t, config, func(ctx context.Context, _ *asynq.Task) error {
				_, err := f.mutex.enter(ctx, "default", "k", "7", "", newMark()) // as a worker does that parks it
				testkit.Must(t, err)
				return errors.New(text)
			})
			task := NewTask("job", []byte(text), "k", asynq.TaskID("7"))
			task.Headers = map[string]string{"note": text}
			f.becomes(t, f.enqueue(t, task).ID, asynq.TaskStateRetry)
			testkit.Must(t, f.mutex.promote(t.Context(), "default", f.mutex.dibs.Key("k").Digest(), "", 8, 1))
			if got := f.state("7"); got != asynq.TaskStateRetry {
				t.Errorf("it is %v before its time", got)
			}
		})
	}
}

// TestReservedHeadersAreLeftOut: a task that is enqueued again with its old headers has only
// those that its caller gave it.
func TestReservedHeadersAreLeftOut(t *testing.T) {
	f := parallel(t, nil)
	done := make(chan map[string]string, 2)
	f.serve(t, asynq.Config{}, func(_ context.Context, task *asynq.Task) error {
		done <- task.Headers()
		return nil
	})
	f.enqueue(t, job("k", "first"))
	old := <-done
	old["own"] = "stays"
	again := NewTask("job", nil, "")
	again.Headers = old
	f.enqueue(t, again)
	if got := <-done; len(got) != 1 || got["own"] != "stays" {
		t.Errorf("a task without a key has the headers %v", got)
	}
}

// TestTaskIDsOfTwoQueues: tasks of two queues are not taken for each other, whatever their IDs
// and queues are called.
func TestTaskIDsOfTwoQueues(t *testing.T) {
	f := parallel(t, &jobs.Options{Once: time.Hour})
	f.serve(t, asynq.Config{Queues: map[string]int{"a": 1, "a:b": 1}}, f.note)
	f.enqueue(t, job("k", "one", asynq.Queue("a:b"), asynq.TaskID("c")))
	f.did.is(t, "one")
	f.enqueue(t, job("k", "two", asynq.Queue("a"), asynq.TaskID("b:c")))
	f.did.is(t, "one", "two")
}

// TestSweepNeedsNoTask: of the tasks of a key, all that were runnable are deleted before a server
// starts. The parked tasks run, although no task comes to the server.
func TestSweepNeedsNoTask(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		remove func(*asynq.Inspector, string, string) error
	}{
		{"deleted", (*asynq.Inspector).DeleteTask},
		{"archived", (*asynq.Inspector).ArchiveTask},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := ownRedis(t)
			before := newFixture(t, r, &jobs.Options{Ahead: 3, Grace: 100 * time.Millisecond})
			var want []string
			for n := range 8 {
				name := fmt.Sprint(n)
				info := before.enqueue(t, job("k", name))
				if n < 3 {
					testkit.Must(t, tt.remove(before.inspector, "default", info.ID))
				} else {
					want = append(want, name)
				}
			}
			f := newFixture(t, r, &jobs.Options{Ahead: 3, Grace: 100 * time.Millisecond})
			f.serve(t, asynq.Config{}, f.note)
			for _, name := range want {
				f.did.has(t, name)
			}
		})
	}
}
