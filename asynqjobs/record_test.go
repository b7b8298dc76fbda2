package asynqjobs

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/hibiken/asynq"
)

// record is what handlers of this process have done.
type record struct {
	mu    sync.Mutex
	lines []string
}

func (r *record) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

func (r *record) read() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lines)
}

// has waits until something was done.
func (r *record) has(t testing.TB, line string) {
	t.Helper()
	eventually(t, line, func() bool { return slices.Contains(r.read(), line) })
}

// is waits until as much was done as is wanted, and fails the test unless it is that.
func (r *record) is(t testing.TB, want ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%v", want), func() bool { return len(r.read()) >= len(want) })
	if got := r.read(); !slices.Equal(got, want) {
		t.Errorf("done was %q, want %q", got, want)
	}
}

// fetches counts how often the workers of this process had each task, and how many of them
// had one of each key at once.
type fetches struct {
	mu     sync.Mutex
	byID   map[string]int
	inside map[string]int
	most   map[string]int
}

func (c *fetches) count(next asynq.Handler) asynq.Handler {
	c.byID, c.inside, c.most = map[string]int{}, map[string]int{}, map[string]int{}
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		key := t.Headers()[headerKey]
		c.mu.Lock()
		c.byID[id]++
		c.inside[key]++
		c.most[key] = max(c.most[key], c.inside[key])
		c.mu.Unlock()
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.inside[key]--
		}()
		return next.ProcessTask(ctx, t)
	})
}

// atMost fails the test if a task was fetched more often, or more workers had a key.
func (c *fetches) atMost(t testing.TB, often, workers int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, n := range c.byID {
		if n > often {
			t.Errorf("task %s was fetched %d times, want %d at most", id, n, often)
		}
	}
	for key, n := range c.most {
		if n > workers && key != "" {
			t.Errorf("%d workers had tasks of key %s, want %d at most", n, key, workers)
		}
	}
}

// gates hold handlers up until they are opened.
type gates struct {
	mu   sync.Mutex
	byID map[string]chan struct{}
}

func (g *gates) gate(name string) chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byID == nil {
		g.byID = map[string]chan struct{}{}
	}
	if g.byID[name] == nil {
		g.byID[name] = make(chan struct{})
	}
	return g.byID[name]
}

func (g *gates) open(name string) { close(g.gate(name)) }

// wait returns when the gate is open, or why not.
func (g *gates) wait(ctx context.Context, name string) error {
	select {
	case <-g.gate(name):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// job returns a task that the records call by that name.
func job(key, name string, opts ...asynq.Option) *Task {
	return NewTask("job", []byte(name), key, opts...)
}

// putOffs returns how many tasks are put off.
func putOffs(t testing.TB, f *fixture) int {
	t.Helper()
	info, err := f.inspector.GetQueueInfo("default")
	if err != nil {
		t.Fatal(err)
	}
	return info.Retry
}

// parked returns how many tasks were parked when they were enqueued, and still are.
func parked(t testing.TB, f *fixture) int {
	t.Helper()
	info, err := f.inspector.GetQueueInfo("default")
	if err != nil {
		t.Fatal(err)
	}
	return info.Scheduled
}

// state returns the state of a task, 0 for one that is gone.
func (f *fixture) state(id string) asynq.TaskState {
	info, err := f.inspector.GetTaskInfo("default", id)
	if err != nil {
		return 0
	}
	return info.State
}

// becomes waits until a task has a state.
func (f *fixture) becomes(t testing.TB, id string, want asynq.TaskState) *asynq.TaskInfo {
	t.Helper()
	eventually(t, fmt.Sprint("the task is ", want), func() bool { return f.state(id) == want })
	info, err := f.inspector.GetTaskInfo("default", id)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// gone waits until a task is done and forgotten.
func (f *fixture) gone(t testing.TB, id string) {
	t.Helper()
	eventually(t, "the task is gone", func() bool { return f.state(id) == 0 })
}
