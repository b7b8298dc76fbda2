package torture

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/history"
)

// workers are the workers of a run. It implements fault.Workers.
type workers struct {
	dir         string
	program     []string // of a worker
	w           *history.Writer
	log         *slog.Logger
	recovery    atomic.Bool
	doing       sync.WaitGroup
	supervisors []*supervisor

	mu      sync.Mutex
	failed  map[string]int // errors of the store, and how often
	broken  []string       // errors of the harness
	stuck   []string       // keys that could not be acquired again
	swept   int            // how many keys could
	ended   []*ended
	crashes int
	freezes int
	highest map[string]uint64 // the fences that the fenced resources have seen, by key
	writes  int
	refused int // writes with a lower fence
	files   []string
}

var _ fault.Workers = (*workers)(nil)

// newWorkers prepares workers; taskOf(i) is the task of worker i.
func newWorkers(dir string, n int, w *history.Writer, log *slog.Logger, taskOf func(i int) task) (*workers, error) {
	program, err := self()
	if err != nil {
		return nil, err
	}
	c := &workers{dir: dir, program: program, w: w, log: log, failed: map[string]int{}, highest: map[string]uint64{}}
	for i := range n {
		t := taskOf(i)
		c.supervisors = append(c.supervisors, &supervisor{workers: c, task: t, random: rand.New(rand.NewPCG(t.Seed, uint64(i)))})
	}
	return c, nil
}

// start starts all workers and waits until they are ready.
func (c *workers) start(ctx context.Context) error {
	for _, m := range c.supervisors {
		m.striking.Lock()
		err := m.start()
		m.striking.Unlock()
		if err != nil {
			return err
		}
	}
	return c.ready(ctx)
}

// ready waits until every worker works. Killed ones are started again meanwhile.
func (c *workers) ready(ctx context.Context) error {
	deadline := time.Now().Add(2 * patience)
	for i, m := range c.supervisors {
		for !m.process.Load().isReady() {
			if time.Now().After(deadline) {
				return fmt.Errorf("worker %d is not ready after %v: %s", i+1, 2*patience, m.process.Load().last())
			}
			if backoff.Sleep(ctx, 5*time.Millisecond) != nil {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// stopCrashing ends the crashes and freezes of all workers, and waits until each has confirmed
// it. A new process starts without them.
func (c *workers) stopCrashing(ctx context.Context) error {
	for _, m := range c.supervisors {
		m.striking.Lock()
		m.task.Crash = false
		p := m.process.Load()
		p.out.send(command{NoCrash: true})
		m.striking.Unlock()
		select {
		case <-p.noCrash:
		case <-p.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return c.ready(ctx)
}

// order sends a command to all workers.
func (c *workers) order(what command) {
	for _, m := range c.supervisors {
		m.striking.Lock()
		if p := m.process.Load(); p != nil {
			p.out.send(what)
		}
		m.striking.Unlock()
	}
}

// finish ends all workers in order.
func (c *workers) finish(ctx context.Context) {
	var all sync.WaitGroup
	for _, m := range c.supervisors {
		all.Go(func() {
			m.striking.Lock()
			defer m.striking.Unlock()
			m.over = true
			m.end(ctx)
		})
	}
	all.Wait()
}

// kill kills the processes that are left, and waits for all goroutines.
func (c *workers) kill() {
	for _, m := range c.supervisors {
		m.striking.Lock()
		m.over = true
		if p := m.process.Load(); p != nil {
			p.struck.Store(true)
			p.kill()
			<-p.done
		}
		m.striking.Unlock()
	}
	c.doing.Wait()
}

// Len implements fault.Workers.
func (c *workers) Len() int { return len(c.supervisors) }

// PID implements fault.Workers.
func (c *workers) PID(i int) int {
	p := c.supervisors[i].process.Load()
	if p == nil || p.gone() {
		return 0
	}
	return p.cmd.Process.Pid
}

// Lost implements fault.Workers.
func (c *workers) Lost(i int) int { return int(c.supervisors[i].lost.Load()) }

// Failed implements fault.Workers.
func (c *workers) Failed(text string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	text = strings.ToLower(text)
	for said, times := range c.failed {
		if strings.Contains(said, text) {
			n += times
		}
	}
	return n
}

// Kill implements fault.Workers.
func (c *workers) Kill(i int) (killed bool, err error) {
	m := c.supervisors[i]
	m.striking.Lock()
	defer m.striking.Unlock()
	p := m.process.Load()
	if p == nil || p.gone() {
		return false, nil
	}
	call := history.Now()
	p.struck.Store(true)
	p.kill()
	<-p.done
	if killed = p.killed() && p.crashed == ""; killed {
		err = c.w.Happened(history.Event{Kind: history.Killed, Process: i + 1, Restarts: p.restarts, Call: call, Return: history.Now()})
	}
	m.again()
	return killed, err
}

// Stop implements fault.Workers.
func (c *workers) Stop(ctx context.Context, i int, d time.Duration) (stopped bool, err error) {
	m := c.supervisors[i]
	m.striking.Lock()
	defer m.striking.Unlock()
	p := m.process.Load()
	if p == nil || p.gone() {
		return false, nil
	}
	return m.pause(ctx, p, d)
}

// write lets a worker write to the fenced resource of a key. The resource refuses a fence that
// is lower than one that it has seen.
func (c *workers) write(key string, fence uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes++
	if fence < c.highest[key] {
		c.refused++
		return
	}
	c.highest[key] = fence
}

// trouble notes that the harness itself fails.
func (c *workers) trouble(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = append(c.broken, why)
	c.log.Warn(why)
}

// supervisor is the runner's side of one worker. It starts the worker's process again when it
// has ended.
type supervisor struct {
	workers *workers
	task    task

	striking sync.Mutex // held while the process is killed, stopped or started
	process  atomic.Pointer[process]
	lost     atomic.Int64
	over     bool // under striking: no process is started any more
	random   *rand.Rand
}

// again starts the worker's next process after a short pause. The caller has striking.
func (m *supervisor) again() {
	if m.over {
		return
	}
	pause := time.Duration(m.random.Int64N(int64(m.task.TTL) / 3))
	m.workers.doing.Go(func() {
		time.Sleep(pause)
		m.striking.Lock()
		defer m.striking.Unlock()
		if m.over || !m.process.Load().gone() {
			return
		}
		if err := m.start(); err != nil {
			m.workers.trouble(err.Error())
		}
	})
}

// start starts a process of the worker. The caller has striking.
func (m *supervisor) start() error {
	if m.over {
		return nil
	}
	t := m.task
	m.task.Restarts++
	file := filepath.Join(m.workers.dir, fmt.Sprintf("worker-%d-%d.jsonl", t.Process, t.Restarts))
	p, err := startProcess(m.workers.program, file)
	if err != nil {
		return fmt.Errorf("worker %d cannot be started: %w", t.Process, err)
	}
	p.restarts = t.Restarts
	m.workers.mu.Lock()
	m.workers.files = append(m.workers.files, file)
	m.workers.mu.Unlock()
	m.process.Store(p)
	p.out.send(t)
	if m.workers.recovery.Load() {
		p.out.send(command{Recovery: true})
	}
	m.workers.doing.Go(func() { m.supervise(p) })
	return nil
}

// end ends the process in order. The caller has striking.
func (m *supervisor) end(ctx context.Context) {
	p := m.process.Load()
	if p == nil || p.gone() {
		return
	}
	p.asked.Store(true)
	p.out.send(command{End: true})
	select {
	case <-p.done:
	case <-ctx.Done():
		p.kill()
		<-p.done
	case <-time.After(endPatience):
		m.workers.trouble(fmt.Sprintf("worker %d did not end within %v", m.task.Process, endPatience))
		p.kill()
		<-p.done
	}
}

// endPatience bounds how long a worker may take to end in order: Close waits for 5 s, twice at
// worst, and goroutines need time to end.
const endPatience = 30 * time.Second

// supervise receives a process's messages until it ends. If nothing asked it to end, the worker
// is started again.
func (m *supervisor) supervise(p *process) {
	c := m.workers
	p.receive(func(msg *message) { m.handle(p, msg) })
	if p.crashed != "" {
		c.mu.Lock()
		c.crashes++
		c.mu.Unlock()
		_ = c.w.Happened(history.Event{
			Kind: history.Killed, Process: m.task.Process, Restarts: p.restarts, Call: p.crashAt, Return: history.Now(),
			Text: "crashed " + p.crashed,
		})
	}
	close(p.done)
	if p.asked.Load() || p.struck.Load() {
		return
	}
	if p.crashed == "" {
		c.trouble(fmt.Sprintf("worker %d ended by itself: %s", m.task.Process, p.last()))
	}
	m.striking.Lock()
	m.again()
	m.striking.Unlock()
}

// handle handles one message.
func (m *supervisor) handle(p *process, msg *message) {
	c := m.workers
	switch {
	case msg.Write:
		c.write(msg.Key, msg.Fence)
	case msg.Failed != "":
		c.mu.Lock()
		c.failed[strings.ToLower(msg.Failed)]++
		c.mu.Unlock()
	case msg.Lost:
		m.lost.Add(1)
	case msg.Crash != "":
		p.crashed, p.crashAt = msg.Crash, history.Now()
	case msg.Freeze != 0:
		c.doing.Go(func() { m.freeze(p, msg.Freeze) })
	case msg.NoCrash:
		close(p.noCrash)
	case msg.Ready:
		close(p.ready)
	case msg.Stuck != "":
		c.mu.Lock()
		c.stuck = append(c.stuck, fmt.Sprintf("worker %d: %s", m.task.Process, msg.Stuck))
		c.mu.Unlock()
	case msg.Swept != 0:
		c.mu.Lock()
		c.swept += msg.Swept
		c.mu.Unlock()
		close(p.swept)
	case msg.Ended != nil:
		c.mu.Lock()
		c.ended = append(c.ended, msg.Ended)
		c.mu.Unlock()
	case msg.Broken != "":
		c.trouble(fmt.Sprintf("worker %d: %s", m.task.Process, msg.Broken))
	}
}

// pause stops a process for d. The caller has striking.
func (m *supervisor) pause(ctx context.Context, p *process, d time.Duration) (stopped bool, err error) {
	e := history.Event{Kind: history.Stopped, Process: m.task.Process, Restarts: p.restarts, Call: history.Now()}
	if stopped, err = p.stop(); err != nil || !stopped {
		return false, errors.Join(err, p.resume())
	}
	_ = backoff.Sleep(ctx, d)
	err = p.resume()
	e.Return = history.Now()
	return stopped, errors.Join(err, m.workers.w.Happened(e))
}

// freeze stops a process that asked for it until its leases have run out.
func (m *supervisor) freeze(p *process, n uint64) {
	m.striking.Lock()
	defer m.striking.Unlock()
	if !m.over && !p.gone() && m.process.Load() == p && !m.workers.recovery.Load() {
		stopped, err := m.pause(context.Background(), p, m.task.TTL+m.task.TTL/4)
		if err != nil {
			m.workers.trouble(err.Error())
		}
		if stopped {
			m.workers.mu.Lock()
			m.workers.freezes++
			m.workers.mu.Unlock()
		}
	}
	p.out.send(command{Thawed: n})
}
