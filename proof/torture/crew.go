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

	"github.com/dibs-go/dibs/proof/fault"
	"github.com/dibs-go/dibs/proof/history"
)

// crew is the workers of a run, as the runner has them. It implements fault.Workers.
type crew struct {
	dir       string
	program   []string // that a worker is
	w         *history.Writer
	resources *resources
	log       *slog.Logger
	calm      atomic.Bool
	doing     sync.WaitGroup
	members   []*member

	mu      sync.Mutex
	failed  map[string]int // what the store said in place of answers, and how often
	broken  []string       // why workers ended that should not have
	stuck   []string       // keys that could not be had in the calm
	swept   int            // how many could
	ended   []*ended
	crashes int
	freezes int
	writes  int // that the resources took
	refused int
	files   []string
}

var _ fault.Workers = (*crew)(nil)

// member is one worker over all its lives.
type member struct {
	crew *crew
	task task

	striking sync.Mutex // held while it is killed, stopped or started
	before   []string   // the command that runs it
	process  atomic.Pointer[process]
	lost     atomic.Int64
	over     bool // under striking: it is not started any more
	random   *rand.Rand
}

// newCrew prepares workers; task(i) is what worker i is told.
func newCrew(dir string, n int, w *history.Writer, log *slog.Logger, taskOf func(i int) task) (*crew, error) {
	program, err := self()
	if err != nil {
		return nil, err
	}
	c := &crew{dir: dir, program: program, w: w, resources: newResources(w), log: log, failed: map[string]int{}}
	for i := range n {
		t := taskOf(i)
		c.members = append(c.members, &member{crew: c, task: t, random: rand.New(rand.NewPCG(t.Seed, uint64(i)))})
	}
	return c, nil
}

// start starts all workers and waits until they are ready.
func (c *crew) start(ctx context.Context) error {
	for _, m := range c.members {
		m.striking.Lock()
		err := m.start()
		m.striking.Unlock()
		if err != nil {
			return err
		}
	}
	return c.ready(ctx)
}

// ready waits until every worker is: those that were killed are started again.
func (c *crew) ready(ctx context.Context) error {
	deadline := time.Now().Add(2 * patience)
	for i, m := range c.members {
		for !m.process.Load().isReady() {
			if time.Now().After(deadline) {
				return fmt.Errorf("worker %d is not ready after %v: %s", i+1, 2*patience, m.process.Load().last())
			}
			if !rest(ctx, 5*time.Millisecond) {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// pacify has every worker do nothing to itself any more, and waits until each has heard
// that, or is a new one that was told from the start.
func (c *crew) pacify(ctx context.Context) error {
	for _, m := range c.members {
		m.striking.Lock()
		m.task.Crash = false
		p := m.process.Load()
		p.tell.say(command{Peace: true})
		m.striking.Unlock()
		select {
		case <-p.peace:
		case <-p.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return c.ready(ctx)
}

// order tells all workers something.
func (c *crew) order(what command) {
	for _, m := range c.members {
		m.striking.Lock()
		if p := m.process.Load(); p != nil {
			p.tell.say(what)
		}
		m.striking.Unlock()
	}
}

// finish ends all workers in order and waits for that.
func (c *crew) finish(ctx context.Context) {
	var all sync.WaitGroup
	for _, m := range c.members {
		all.Go(func() {
			m.striking.Lock()
			defer m.striking.Unlock()
			m.over = true
			m.end(ctx)
		})
	}
	all.Wait()
}

// kill ends whoever is left, at once, and everything that the crew does.
func (c *crew) kill() {
	for _, m := range c.members {
		m.striking.Lock()
		m.over = true
		if p := m.process.Load(); p != nil {
			p.kill()
			<-p.done
		}
		m.striking.Unlock()
	}
	c.doing.Wait()
}

// Len implements fault.Workers.
func (c *crew) Len() int { return len(c.members) }

// PID implements fault.Workers.
func (c *crew) PID(i int) int {
	p := c.members[i].process.Load()
	if p == nil || p.gone() {
		return 0
	}
	return p.cmd.Process.Pid
}

// Lost implements fault.Workers.
func (c *crew) Lost(i int) int { return int(c.members[i].lost.Load()) }

// Failed implements fault.Workers.
func (c *crew) Failed(text string) int {
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
func (c *crew) Kill(i int) (killed bool, err error) {
	m := c.members[i]
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
		err = c.w.Happened(history.Event{Kind: history.Killed, Process: i + 1, Life: p.life, Call: call, Return: history.Now()})
	}
	m.again()
	return killed, err
}

// Stop implements fault.Workers.
func (c *crew) Stop(ctx context.Context, i int, d time.Duration) (stopped bool, err error) {
	m := c.members[i]
	m.striking.Lock()
	defer m.striking.Unlock()
	p := m.process.Load()
	if p == nil || p.gone() {
		return false, nil
	}
	return m.pause(ctx, p, d)
}

// pause stops a life for a while. The caller has striking.
func (m *member) pause(ctx context.Context, p *process, d time.Duration) (stopped bool, err error) {
	e := history.Event{Kind: history.Stopped, Process: m.task.Process, Life: p.life, Call: history.Now()}
	if stopped, err = p.stop(); err != nil || !stopped {
		return false, errors.Join(err, p.goOn())
	}
	rest(ctx, d)
	err = p.goOn()
	e.Return = history.Now()
	return stopped, errors.Join(err, m.crew.w.Happened(e))
}

// freeze stops a life that asked for it until its leases have run out.
func (m *member) freeze(p *process, n uint64) {
	m.striking.Lock()
	defer m.striking.Unlock()
	if !m.over && !p.gone() && m.process.Load() == p && !m.crew.calm.Load() {
		stopped, err := m.pause(context.Background(), p, m.task.TTL+m.task.TTL/4)
		if err != nil {
			m.crew.breaks(err.Error())
		}
		if stopped {
			m.crew.mu.Lock()
			m.crew.freezes++
			m.crew.mu.Unlock()
		}
	}
	p.tell.say(command{Thawed: n})
}

// Restart implements fault.Workers.
func (c *crew) Restart(i int, before []string) error {
	m := c.members[i]
	m.striking.Lock()
	m.before = before
	m.end(context.Background())
	err := m.start()
	m.striking.Unlock()
	if err != nil {
		return err
	}
	p := m.process.Load()
	select {
	case <-p.ready:
		return nil
	case <-p.done:
		if p.crashed != "" || p.struck.Load() {
			return nil
		}
		return fmt.Errorf("worker %d does not start as what %q runs: %s", i+1, before, p.last())
	}
}

// again starts the worker once more, in a moment. The caller has striking.
func (m *member) again() {
	if m.over {
		return
	}
	pause := time.Duration(m.random.Int64N(int64(m.task.TTL) / 3))
	m.crew.doing.Go(func() {
		time.Sleep(pause)
		m.striking.Lock()
		defer m.striking.Unlock()
		if m.over || !m.process.Load().gone() {
			return
		}
		if err := m.start(); err != nil {
			m.crew.breaks(err.Error())
		}
	})
}

// start starts a life of the worker. The caller has striking.
func (m *member) start() error {
	if m.over {
		return nil
	}
	t := m.task
	m.task.Life++
	file := filepath.Join(m.crew.dir, fmt.Sprintf("worker-%d-%d.jsonl", t.Process, t.Life))
	p, err := startProcess(append(append([]string{}, m.before...), m.crew.program...), file)
	if err != nil {
		return fmt.Errorf("worker %d cannot be started: %w", t.Process, err)
	}
	p.life = t.Life
	m.crew.mu.Lock()
	m.crew.files = append(m.crew.files, file)
	m.crew.mu.Unlock()
	m.process.Store(p)
	p.tell.say(t)
	if m.crew.calm.Load() {
		p.tell.say(command{Calm: true})
	}
	m.crew.doing.Go(func() { m.attend(p) })
	return nil
}

// end ends the life that there is, in order. The caller has striking.
func (m *member) end(ctx context.Context) {
	p := m.process.Load()
	if p == nil || p.gone() {
		return
	}
	p.asked.Store(true)
	p.tell.say(command{End: true})
	select {
	case <-p.done:
	case <-ctx.Done():
		p.kill()
		<-p.done
	case <-time.After(endPatience):
		m.crew.breaks(fmt.Sprintf("worker %d did not end within %v", m.task.Process, endPatience))
		p.kill()
		<-p.done
	}
}

// endPatience is how long a worker may take to end in order: Close waits for 5 s, twice
// at worst, and goroutines may take a while to end.
const endPatience = 30 * time.Second

// attend listens to a life until its end, and has the worker started again if nobody
// wanted it to end.
func (m *member) attend(p *process) {
	c := m.crew
	p.listen(func(msg *message) { m.hear(p, msg) })
	if p.crashed != "" {
		c.mu.Lock()
		c.crashes++
		c.mu.Unlock()
		_ = c.w.Happened(history.Event{
			Kind: history.Killed, Process: m.task.Process, Life: p.life, Call: p.crashAt, Return: history.Now(),
			Text: "crashed " + p.crashed,
		})
	}
	close(p.done)
	if p.asked.Load() || p.struck.Load() {
		return
	}
	if p.crashed == "" {
		c.breaks(fmt.Sprintf("worker %d ended by itself: %s", m.task.Process, p.last()))
	}
	m.striking.Lock()
	m.again()
	m.striking.Unlock()
}

// hear is told one message of a life.
func (m *member) hear(p *process, msg *message) {
	c := m.crew
	switch {
	case msg.Write:
		accepted := c.resources.take(m.task.Process, p.life, msg)
		c.mu.Lock()
		if c.writes++; !accepted {
			c.refused++
		}
		c.mu.Unlock()
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
	case msg.Peace:
		close(p.peace)
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
		c.breaks(fmt.Sprintf("worker %d: %s", m.task.Process, msg.Broken))
	}
}

// breaks notes that the harness itself does not do what it should.
func (c *crew) breaks(why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = append(c.broken, why)
	c.log.Warn(why)
}
