package asynqjobs

import (
	"maps"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
)

// Task is a task that excludes others of its key. It is enqueued by Mutex.EnqueueContext.
type Task struct {
	Type    string
	Payload []byte
	// Key is what tasks exclude each other by: 1 to 512 bytes. A task whose Key is ""
	// excludes no other.
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

// spare is how many retries more than asked for a task gets from Asynq, which archives a
// task on its last attempt also when it is put off. The handler never sees it.
const spare = 1

// wish is what a task's options say that matters here.
type wish struct {
	due      time.Time // when it runs first
	later    bool      // it is not to run at once, or becomes part of another task
	maxRetry int
	queue    string
	id       string

	ticket string // found out later
	parked bool
}

func wishOf(opts []asynq.Option, now time.Time) wish {
	w := wish{due: now, maxRetry: 25, queue: "default"} // Asynq's defaults
	for _, o := range opts {
		switch v := o.Value(); o.Type() {
		case asynq.MaxRetryOpt:
			w.maxRetry = v.(int)
		case asynq.ProcessAtOpt:
			w.due = v.(time.Time)
		case asynq.ProcessInOpt:
			w.due = now.Add(v.(time.Duration))
		case asynq.GroupOpt:
			w.later = true
		case asynq.QueueOpt:
			w.queue = v.(string)
		case asynq.TaskIDOpt:
			w.id = v.(string)
		}
	}
	if w.due.After(now) {
		w.later = true
	} else {
		w.due = now
	}
	return w
}

// headers returns those of a task with a key.
func (t *Task) headers(w wish) map[string]string {
	h := map[string]string{}
	maps.Copy(h, t.Headers)
	h[headerKey], h[headerTicket], h[parkedMark] = t.Key, w.ticket, w.id
	h[headerDue] = strconv.FormatInt(w.due.UnixMilli(), 10)
	h[headerRetry] = strconv.Itoa(w.maxRetry)
	// A task that is enqueued again may have them.
	if w.ticket == "" {
		delete(h, headerTicket)
	}
	if !w.parked {
		delete(h, parkedMark)
	}
	return h
}

// maxRetryOf reads what headers wrote.
func maxRetryOf(t *asynq.Task) (n int, ok bool) {
	n, err := strconv.Atoi(t.Headers()[headerRetry])
	return n, err == nil
}
