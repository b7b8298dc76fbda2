package asynqjobs

import (
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
)

// Task is a task that excludes other tasks of its key. Enqueue it with
// Mutex.EnqueueContext.
type Task struct {
	// Type and Payload are Asynq's.
	Type    string
	Payload []byte
	// Key excludes other tasks of the same key: 1 to 512 bytes. "": the task excludes no
	// other.
	Key string
	// Headers travel with the task. Names that begin with "dibs-" are reserved, and left out:
	// a task that is enqueued again may have old ones.
	Headers map[string]string
	// Options are Asynq's options of the task.
	Options []asynq.Option
}

// NewTask is asynq.NewTask for a task with a key.
func NewTask(typename string, payload []byte, key string, opts ...asynq.Option) *Task {
	return &Task{Type: typename, Payload: payload, Key: key, Options: opts}
}

// The headers of a task.
const (
	headerPrefix = "dibs-"
	headerKey    = "dibs-key"
	headerTicket = "dibs-ticket"
	headerDue    = "dibs-due"       // when it should first run, in Unix milliseconds
	headerRetry  = "dibs-max-retry" // as the caller set it; see spare
	headerParked = "dibs-parked"    // its mark, if it was enqueued parked
)

// spare is how many retries a task gets beyond its MaxRetry, because Asynq archives a
// requeued task on its last try. The handler never sees it.
const spare = 1

// settings are the options of a task that matter here.
type settings struct {
	due      time.Time // when it should first run
	later    bool      // it should not run at once, or joins a group
	maxRetry int
	queue    string
	id       string

	ticket string // set later
	mark   string // set later, if it is parked
}

func settingsOf(opts []asynq.Option, now time.Time) settings {
	w := settings{due: now, maxRetry: 25, queue: "default"} // Asynq's defaults
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

// ownHeaders returns the caller's headers without reserved names.
func (t *Task) ownHeaders() map[string]string {
	h := maps.Clone(t.Headers)
	maps.DeleteFunc(h, func(name, _ string) bool { return strings.HasPrefix(name, headerPrefix) })
	return h
}

// headers returns the headers of a task with a key.
func (t *Task) headers(w settings) map[string]string {
	h := map[string]string{headerKey: t.Key, headerDue: strconv.FormatInt(w.due.UnixMilli(), 10), headerRetry: strconv.Itoa(w.maxRetry)}
	if w.ticket != "" {
		h[headerTicket] = w.ticket
	}
	if w.mark != "" {
		h[headerParked] = w.mark
	}
	maps.Copy(h, t.ownHeaders())
	return h
}

// maxRetryOf reads the header of headers.
func maxRetryOf(t *asynq.Task) (n int, ok bool) {
	n, err := strconv.Atoi(t.Headers()[headerRetry])
	return n, err == nil
}
