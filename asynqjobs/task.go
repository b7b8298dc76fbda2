package asynqjobs

import (
	"maps"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
)

// Task is a task that excludes others of its key. It is enqueued by a Client.
type Task struct {
	Type    string
	Payload []byte
	// Key is what tasks exclude each other by: 1 to 512 bytes. A task whose Key is ""
	// excludes nobody.
	Key string
	// Headers travel with the task, beside those that begin with "dibs-".
	Headers map[string]string
	// Options are Asynq's.
	Options []asynq.Option
}

// NewTask is asynq.NewTask for a task with a key.
func NewTask(typename string, payload []byte, key string, opts ...asynq.Option) *Task {
	return &Task{Type: typename, Payload: payload, Key: key, Options: opts}
}

// What a task carries in its headers.
const (
	headerKey    = "dibs-key"
	headerTicket = "dibs-ticket"
	headerDue    = "dibs-due"       // when it was to run first, in Unix milliseconds
	headerRetry  = "dibs-max-retry" // as asked for; see spare
)

// spare is how many retries more than asked for a task gets from Asynq, which archives
// a task on its last attempt whatever the error is, and so also one that has only been
// waiting. The handler never sees it.
const spare = 1

// defaultMaxRetry is Asynq's.
const defaultMaxRetry = 25

// wish is what a task's options say that matters here.
type wish struct {
	at       time.Time // when it runs first; zero for at once
	maxRetry int
	grouped  bool // it becomes part of another task
}

func wishOf(opts []asynq.Option, now time.Time) wish {
	w := wish{maxRetry: defaultMaxRetry}
	for _, o := range opts {
		switch v := o.Value().(type) {
		case int:
			if o.Type() == asynq.MaxRetryOpt {
				w.maxRetry = v
			}
		case time.Time:
			if o.Type() == asynq.ProcessAtOpt {
				w.at = v
			}
		case time.Duration:
			if o.Type() == asynq.ProcessInOpt {
				w.at = now.Add(v)
			}
		case string:
			w.grouped = w.grouped || o.Type() == asynq.GroupOpt
		}
	}
	if !w.at.After(now) {
		w.at = time.Time{}
	}
	return w
}

// headers returns those of a task with a key.
func (t *Task) headers(w wish, ticket string, now time.Time) map[string]string {
	h := maps.Clone(t.Headers)
	if h == nil {
		h = map[string]string{}
	}
	if w.at.IsZero() {
		w.at = now
	}
	h[headerKey] = t.Key
	h[headerDue] = strconv.FormatInt(w.at.UnixMilli(), 10)
	h[headerRetry] = strconv.Itoa(w.maxRetry)
	delete(h, headerTicket) // of a task that is enqueued again
	if ticket != "" {
		h[headerTicket] = ticket
	}
	return h
}

// dueOf and maxRetryOf read what headers wrote.
func dueOf(t *asynq.Task) time.Time {
	ms, err := strconv.ParseInt(t.Headers()[headerDue], 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

func maxRetryOf(t *asynq.Task) (n int, ok bool) {
	n, err := strconv.Atoi(t.Headers()[headerRetry])
	return n, err == nil
}
