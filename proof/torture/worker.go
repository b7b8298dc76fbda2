package torture

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/proof/history"
)

// workerArg as the program's only argument makes it a worker.
const workerArg = "__torture-worker"

// historyFile is the open file of a worker that its history goes to. It is a pipe: what
// was written before a kill is there, and a full disk does not concern it.
const historyFile = 3

// Child makes this process a worker and does not return, if that is what its arguments
// say. A program that uses this package, and a test binary, call it first in main.
func Child(open Open) {
	if len(os.Args) != 2 || os.Args[1] != workerArg {
		return
	}
	ignoreFull()
	w := &worker{
		open: open,
		tell: newMouth(os.Stdout),
		calm: make(chan struct{}), over: make(chan struct{}),
		frozen: map[uint64]chan struct{}{},
	}
	if err := w.live(os.Stdin, os.NewFile(historyFile, "history")); err != nil {
		w.tell.say(message{Broken: err.Error()})
		os.Exit(1)
	}
	os.Exit(0)
}

// worker is the life of a process that uses the store.
type worker struct {
	task
	open Open
	tell *mouth
	w    *history.Writer

	opened *Store
	store  dibs.Store // recorded
	client *dibs.Client
	db     *effects
	tx     dibs.Transactor // recorded

	calm chan struct{} // closed when no fault will come any more
	over chan struct{} // closed when it is to end
	end  context.CancelFunc

	mu      sync.Mutex
	frozen  map[uint64]chan struct{} // who waits until a freeze is over, by its number
	freezes uint64

	fate    sync.RWMutex  // held while this process does something to itself
	peace   bool          // under fate: it does no more
	results atomic.Uint64 // numbers them
}

// patience is how long a worker tries to open a store that does not answer.
const patience = 30 * time.Second

// live works until it is told to end. The process ends with its runner.
func (w *worker) live(in io.Reader, to io.Writer) error {
	words := json.NewDecoder(bufio.NewReader(in))
	if err := words.Decode(&w.task); err != nil {
		return fmt.Errorf("no task came: %w", err)
	}
	w.w = history.NewWriter(to, w.Process, w.Life)
	w.w.Now = history.Now
	before := belongings{runtime.NumGoroutine() + 1, openFiles()} // and the listener
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w.end = cancel
	go w.listen(words)
	if err := w.begin(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // it is to end before it could begin
		}
		return err
	}
	w.tell.say(message{Ready: true})
	w.work(ctx)
	<-w.over
	w.tell.say(message{Ended: w.finish(before)})
	return nil
}

// listen takes commands, until the runner is gone.
func (w *worker) listen(words *json.Decoder) {
	for {
		var c command
		if err := words.Decode(&c); err != nil {
			os.Exit(2)
		}
		switch {
		case c.Peace:
			go w.pacify() // who stands still has to be thawed first
		case c.Calm:
			close(w.calm)
		case c.End:
			w.end()
			close(w.over)
		case c.Thawed != 0:
			w.mu.Lock()
			close(w.frozen[c.Thawed])
			delete(w.frozen, c.Thawed)
			w.mu.Unlock()
		}
	}
}

// pacify has this process do nothing to itself any more.
func (w *worker) pacify() {
	w.fate.Lock()
	w.peace = true
	w.fate.Unlock()
	w.tell.say(message{Peace: true})
}

// begin opens the store, as often as that takes while faults strike.
func (w *worker) begin(ctx context.Context) error {
	for start := time.Now(); ; {
		s, err := w.open(ctx, w.URL)
		if err == nil {
			w.opened = s
			break
		}
		if ctx.Err() != nil || time.Since(start) > patience {
			return fmt.Errorf("the store cannot be opened: %w", err)
		}
		w.failed(err)
		rest(ctx, 50*time.Millisecond)
	}
	w.store = history.Record(w.opened.Store, w.w, w.failed)
	if w.db = w.opened.effects; w.db != nil {
		w.tx = history.RecordTransactor(w.db.Transactor, w.w, w.failed)
	}
	var err error
	w.client, err = dibs.New(w.store, &dibs.Options{
		Namespace: w.Namespace, TTL: w.TTL, Timeout: max(w.TTL, time.Second),
		Label: fmt.Sprintf("torture %d.%d", w.Process, w.Life),
	})
	return err
}

// failed tells the runner what the store said in place of an answer.
func (w *worker) failed(err error) {
	if !errors.Is(err, dibs.ErrLost) && !errors.Is(err, context.Canceled) {
		w.tell.say(message{Failed: err.Error()})
	}
}

// belongings are what a process has.
type belongings struct {
	goroutines int
	files      []string
}

// finish closes everything and says what is left.
func (w *worker) finish(before belongings) *ended {
	var e ended
	note := func(what string, err error) {
		if err != nil {
			e.Errors = append(e.Errors, what+": "+err.Error())
		}
	}
	note("closing the client", w.client.Close())
	note("closing the store", w.opened.Close())
	left := func() bool {
		e.Goroutines = max(0, runtime.NumGoroutine()-before.goroutines)
		e.Files = slices.DeleteFunc(openFiles(), func(f string) bool { return slices.Contains(before.files, f) })
		return e.Goroutines > 0 || len(e.Files) > 0
	}
	for deadline := time.Now().Add(leftPatience); left() && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	if e.Goroutines > 0 {
		e.Stacks = stacks()
	}
	return &e
}

// openFiles names the files and connections that this process has open, where the system
// tells.
func openFiles() []string {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return nil
	}
	var open []string
	for _, e := range entries {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil && (strings.HasPrefix(to, "socket:") || strings.HasPrefix(to, "/") && !strings.HasPrefix(to, "/proc/")) {
			open = append(open, to)
		}
	}
	return open
}

// leftPatience is how long goroutines and connections may take to end after everything was closed. The
// client of a Redis Cluster rests for 5 s before it lets go of a connection.
const leftPatience = 8 * time.Second

// stacks returns those of other goroutines than this one and the listener.
func stacks() string {
	buf := make([]byte, 1<<16)
	var left []string
	for i, stack := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if i > 0 && !strings.Contains(stack, "(*worker).listen") {
			left = append(left, stack)
		}
	}
	return strings.Join(left, "\n\n")
}

// note writes down what happened. Whoever reads it may be gone, and this process is soon.
func (w *worker) note(e history.Event) { _ = w.w.Happened(e) }

// write asks the resource of a key to take a write with the fence.
func (w *worker) write(key, token string, fence uint64) {
	w.tell.say(message{Write: true, Key: key, Token: token, Fence: fence})
}

// standStill has the runner stop this process for longer than leases last, and returns
// when it goes on.
func (w *worker) standStill(ctx context.Context) {
	thawed := make(chan struct{})
	w.mu.Lock()
	w.freezes++
	n := w.freezes
	w.frozen[n] = thawed
	w.mu.Unlock()
	w.tell.say(message{Freeze: n})
	select {
	case <-thawed:
	case <-ctx.Done():
	}
}

// rest waits, and reports whether ctx still goes on.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
