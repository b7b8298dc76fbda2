package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/jobs"
	"github.com/dibs-go/dibs/proof/history"
	"github.com/dibs-go/dibs/store"
)

// process is a program that uses the store. It can be stopped, cut off from the store, and
// killed and started again.
type process struct {
	world  *world
	number int

	mu           sync.Mutex
	session      *session
	still        time.Duration // until when it pauses
	cutUntil     time.Duration // until when it is cut off
	dropRequests bool          // cut off: what it sends is lost
	dropAnswers  bool          // cut off: what is sent to it is lost
}

// session is one run of a process: some workers with one client.
type session struct {
	process *process
	number  int
	client  *dibs.Client
	mutex   *jobs.Mutex // on the client
	store   dibs.Store  // what the client sees
	writer  *history.Writer
	end     context.CancelFunc
	work    sync.WaitGroup
	dead    bool // under the process's lock
}

func newProcess(w *world, number int) *process { return &process{world: w, number: number} }

// start begins a session.
func (p *process) start() {
	w := p.world
	l := &session{process: p}
	if p.session != nil {
		l.number = p.session.number + 1
	}
	store := newLink(l)
	if w.client != nil {
		store = w.client(store)
	}
	l.writer = w.recording.writer(p.number, l.number)
	l.writer.Ended = l.isDead
	l.store = history.Record(store, l.writer, nil)
	client, err := dibs.New(l.store, &dibs.Options{TTL: w.plan.ttl, Timeout: w.plan.timeout, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		panic(err) // the options are wrong
	}
	l.client = client
	l.mutex = newMutex(l)
	ctx, end := context.WithCancel(context.Background())
	l.end = end
	p.mu.Lock()
	p.session = l
	p.mu.Unlock()
	for n := range w.plan.workers {
		l.work.Go(func() { newWorker(l, n).run(ctx) })
	}
}

// stop ends the process in order, and returns the error of its client.
func (p *process) stop() error {
	l := p.session
	l.end()
	l.mutex.Close()
	err := l.client.Close()
	l.work.Wait()
	if err != nil {
		return fmt.Errorf("process %d: %w", p.number, err)
	}
	return nil
}

// fate strikes the process while there are faults.
func (p *process) fate() {
	w := p.world
	r := w.plan.among(1, uint64(p.number))
	for {
		time.Sleep(200*time.Millisecond + rand64(r, 2*time.Second))
		if w.now() > w.plan.faulty+time.Second {
			return
		}
		switch n := r.IntN(100); {
		case n < w.plan.pauses:
			p.pause(w.plan.ttl/4 + rand64(r, 2*w.plan.ttl))
		case n < w.plan.pauses+w.plan.kills:
			p.kill(r)
		case n < w.plan.pauses+w.plan.kills+w.plan.parts:
			p.part(r)
		}
	}
}

// pause stops the process for d.
func (p *process) pause(d time.Duration) {
	w := p.world
	since := w.now()
	p.mu.Lock()
	p.still = since + d
	number := p.session.number
	p.mu.Unlock()
	time.Sleep(d)
	w.recording.note(history.Event{Kind: history.Stopped, Process: p.number, Restarts: number, Call: since})
	w.recording.fault("pause", p.number)
}

// gate returns when the process is not stopped, and a moment later, so that its goroutines do
// not go on at the same moment. It reports whether the process lives.
func (l *session) gate(moment time.Duration) bool {
	p := l.process
	for {
		p.mu.Lock()
		dead, wait := l.dead, p.still-p.world.now()
		p.mu.Unlock()
		if dead || wait <= 0 {
			return !dead
		}
		time.Sleep(wait + moment)
	}
}

// kill ends the process as a crash does, and starts it again after a while.
func (p *process) kill(r *rand.Rand) {
	w := p.world
	p.mu.Lock()
	l := p.session
	l.dead = true
	p.mu.Unlock()
	w.recording.note(history.Event{Kind: history.Killed, Process: p.number, Restarts: l.number})
	w.recording.fault("kill", p.number)
	l.end()
	// What is left of it runs on, but no call of it arrives any more.
	w.flights.Go(func() {
		l.mutex.Close()
		_ = l.client.Close()
		l.work.Wait()
	})
	time.Sleep(time.Millisecond + rand64(r, w.plan.ttl))
	p.start()
}

// part cuts the process off for a while, both ways or one.
func (p *process) part(r *rand.Rand) {
	w := p.world
	d := w.plan.ttl/4 + rand64(r, 2*w.plan.ttl)
	way := r.IntN(3)
	p.mu.Lock()
	p.cutUntil = w.now() + d
	p.dropRequests, p.dropAnswers = way != 1, way != 0
	p.mu.Unlock()
	w.recording.fault([...]string{"requests dropped", "answers dropped", "partition"}[way], p.number)
	time.Sleep(d)
}

// cut reports which ways the process is cut off.
func (p *process) cut() (dropRequests, dropAnswers bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.world.now() >= p.cutUntil {
		return false, false
	}
	return p.dropRequests, p.dropAnswers
}

func (l *session) isDead() bool {
	l.process.mu.Lock()
	defer l.process.mu.Unlock()
	return l.dead
}

// recording is the history in memory.
type recording struct {
	history.Memory
	began time.Time
	all   *history.Writer // of faults
}

func newRecording(began time.Time) *recording {
	t := &recording{began: began}
	t.all = t.writer(0, 0)
	return t
}

// now returns the time of the recording. It is never 0, because 0 is not a time.
func (t *recording) now() time.Duration { return time.Since(t.began) + time.Second }

// writer returns the writer of a session.
func (t *recording) writer(process, session int) *history.Writer {
	w := t.Writer(process, session)
	w.Now = t.now
	return w
}

// note writes an event of this moment, or one that has gone on since its Call.
func (t *recording) note(e history.Event) {
	_ = t.all.Happened(e) // memory takes everything
}

// fault writes that a fault hit a process.
func (t *recording) fault(name string, process int) {
	t.note(history.Event{Kind: history.Fault, Name: name, Process: process, Times: 1})
}

// events returns the history, in the order of the calls. Tokens are numbered, so that a history
// does not depend on their random digits.
func (t *recording) events() []history.Event {
	all := t.Events()
	numbers := map[string]string{"": ""}
	number := func(token *string) {
		if _, ok := numbers[*token]; !ok {
			numbers[*token] = fmt.Sprintf("%032x", len(numbers))
		}
		*token = numbers[*token]
	}
	none := store.Token{}
	for i := range all {
		if all[i].Token == fmt.Sprintf("%x", none[:]) {
			continue // a Look has none
		}
		number(&all[i].From)
		number(&all[i].Token)
	}
	return all
}
