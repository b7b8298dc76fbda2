package torture

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/proof/history"
	"github.com/dibs-go/dibs/proof/workload"
)

// workerArg as the program's only argument makes it a worker.
const workerArg = "__torture-worker"

// historyFile is the open file to which a worker writes its history. It is a pipe: what was
// written before a kill is in it, and a full disk does not matter.
const historyFile = 3

// Child makes this process a worker, and does not return, if its arguments say so. A program or
// a test binary that uses this package calls it first in main. Nil means OpenStore.
func Child(open Open) {
	if len(os.Args) != 2 || os.Args[1] != workerArg {
		return
	}
	ignoreSignals()
	w := &worker{
		open:     open,
		out:      newSender(os.Stdout),
		recovery: make(chan struct{}), over: make(chan struct{}),
		frozen: map[uint64]chan struct{}{},
	}
	if err := w.serve(os.Stdin, os.NewFile(historyFile, "history")); err != nil {
		w.out.send(message{Broken: err.Error()})
		os.Exit(1)
	}
	os.Exit(0)
}

// worker is a process that uses the store.
type worker struct {
	task
	open Open
	out  *sender
	w    *history.Writer

	opened *Store
	store  dibs.Store // recorded
	client *dibs.Client
	db     *effects
	tx     dibs.Transactor // recorded

	recovery chan struct{} // closed after the last fault
	over     chan struct{} // closed when the runner ends it
	end      context.CancelFunc

	mu      sync.Mutex
	frozen  map[uint64]chan struct{} // closed when the freeze of that number is over
	freezes uint64

	places   workload.Places
	crashing sync.RWMutex  // held while this process crashes or freezes
	noCrash  bool          // under crashing: it does not any more
	results  atomic.Uint64 // how many there were
	sections atomic.Uint64 // under locks of a Locker

	beside sync.WaitGroup // what runs beside the lanes
}

// patience is how long a worker tries to open a store that does not answer.
const patience = 30 * time.Second

// serve works until the runner ends it, or has ended itself.
func (w *worker) serve(in io.Reader, to io.Writer) error {
	words := json.NewDecoder(bufio.NewReader(in))
	if err := words.Decode(&w.task); err != nil {
		return fmt.Errorf("no task came: %w", err)
	}
	w.w = history.NewWriter(to, w.Process, w.Restarts)
	w.w.Now = history.Now
	before := resources{runtime.NumGoroutine() + 1, openFiles()} // with receive
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w.end = cancel
	go w.receive(words)
	if err := w.begin(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	w.out.send(message{Ready: true})
	if w.opened.Locker != nil {
		w.workLocks(ctx)
	} else {
		w.work(ctx)
	}
	<-w.over
	w.out.send(message{Ended: w.finish(before)})
	return nil
}

// receive handles commands until the runner has ended.
func (w *worker) receive(words *json.Decoder) {
	for {
		var c command
		if err := words.Decode(&c); err != nil {
			os.Exit(2)
		}
		switch {
		case c.NoCrash:
			go w.stopCrashing() // after a freeze that continues
		case c.Recovery:
			close(w.recovery)
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

// stopCrashing ends the crashes and freezes of this process.
func (w *worker) stopCrashing() {
	w.crashing.Lock()
	w.noCrash = true
	w.crashing.Unlock()
	w.out.send(message{NoCrash: true})
}

// begin opens the store, as often as necessary while faults strike.
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
		_ = backoff.Sleep(ctx, 50*time.Millisecond)
	}
	if w.opened.Locker != nil {
		return nil
	}
	w.store = history.Record(w.opened.Store, w.w, w.failed)
	if w.db = w.opened.effects; w.db != nil {
		w.tx = history.RecordTransactor(w.db.transactor, w.w, w.failed)
	}
	var err error
	w.client, err = dibs.New(w.store, &dibs.Options{
		Namespace: w.Namespace, TTL: w.TTL, Timeout: max(w.TTL, time.Second),
		Label:  fmt.Sprintf("torture %d.%d", w.Process, w.Restarts),
		Logger: slog.New(slog.DiscardHandler),
	})
	return err
}

// failed reports an error of the store to the runner.
func (w *worker) failed(err error) {
	if !errors.Is(err, dibs.ErrLost) && !errors.Is(err, context.Canceled) {
		w.out.send(message{Failed: err.Error()})
	}
}

// resources are the goroutines and files of this process.
type resources struct {
	goroutines int
	files      []string
}

// finish closes everything, and returns what is left.
func (w *worker) finish(before resources) *ended {
	var e ended
	note := func(what string, err error) {
		if err != nil {
			e.Errors = append(e.Errors, what+": "+err.Error())
		}
	}
	if w.client != nil {
		note("closing the client", w.client.Close())
	}
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

// openFiles returns the names of the open files and connections of this process, on Linux.
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

// leftPatience is how long goroutines and connections may take to end after the store was
// closed. The client of a Redis Cluster waits for 5 s before it closes a connection.
const leftPatience = 8 * time.Second

// stacks returns the stacks of the goroutines, without this one and the one that receives
// commands.
func stacks() string {
	buf := make([]byte, 1<<16)
	var left []string
	for i, stack := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if i > 0 && !strings.Contains(stack, "(*worker).receive") {
			left = append(left, stack)
		}
	}
	return strings.Join(left, "\n\n")
}

// Note writes an event to the history. An error means that the runner has ended, and then this
// process ends too.
func (w *worker) Note(e history.Event) { _ = w.w.Happened(e) }

// Lost reports a lost lease to the runner.
func (w *worker) Lost() { w.out.send(message{Lost: true}) }

// Write writes to the fenced resource of a key.
func (w *worker) Write(key string, fence uint64) {
	w.out.send(message{Write: true, Key: key, Fence: fence})
}

// standStill asks the runner to stop this process for longer than leases last, and returns when
// it continues.
func (w *worker) standStill(ctx context.Context) {
	thawed := make(chan struct{})
	w.mu.Lock()
	w.freezes++
	n := w.freezes
	w.frozen[n] = thawed
	w.mu.Unlock()
	w.out.send(message{Freeze: n})
	select {
	case <-thawed:
	case <-ctx.Done():
	}
}

// ignoreSignals makes a write beyond a limit on the size of files fail instead of ending the
// process. It also ignores the signals that end the runner in order, because a supervisor may
// send them to all processes of the group.
func ignoreSignals() {
	signal.Ignore(syscall.SIGXFSZ, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
}

// die ends this process as a crash would.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // it comes soon
}

// task is what a worker gets when it starts. It comes by standard input, because it may contain
// a password.
type task struct {
	URL       string        `json:"url"`
	Namespace string        `json:"namespace"`
	Run       string        `json:"run"` // names the table of effects
	Process   int           `json:"process"`
	Restarts  int           `json:"restarts"`
	Processes int           `json:"processes"`
	Lanes     int           `json:"lanes"`
	Seed      uint64        `json:"seed"`
	TTL       time.Duration `json:"ttl"`
	Pause     time.Duration `json:"pause"` // of a lane between two actions, on average
	Begin     time.Duration `json:"begin"` // when the run began, by history.Now
	Crash     bool          `json:"crash"` // it may crash and freeze by itself
}

// command is one command to a worker.
type command struct {
	Thawed   uint64 `json:"thawed,omitempty"`   // the number of a Freeze that is over
	NoCrash  bool   `json:"noCrash,omitempty"`  // do not crash and freeze any more
	Recovery bool   `json:"recovery,omitempty"` // the last fault is over
	End      bool   `json:"end,omitempty"`      // end in order
}

// message is one message of a worker.
type message struct {
	Ready   bool   `json:"ready,omitempty"`
	Failed  string `json:"failed,omitempty"`  // an error of the store
	Lost    bool   `json:"lost,omitempty"`    // a lease
	Crash   string `json:"crash,omitempty"`   // it crashes now, at this place
	Freeze  uint64 `json:"freeze,omitempty"`  // it asks to be stopped for longer than its leases; the number comes back as Thawed
	NoCrash bool   `json:"noCrash,omitempty"` // it does not crash and freeze any more

	// Write is a write to the fenced resource of Key with Fence.
	Write  bool   `json:"write,omitempty"`
	Key    string `json:"key,omitempty"`
	Fence  uint64 `json:"fence,omitempty"`
	Stuck  string `json:"stuck,omitempty"` // a key that could not be acquired again, and why
	Swept  int    `json:"swept,omitempty"` // how many keys could
	Ended  *ended `json:"ended,omitempty"`
	Broken string `json:"broken,omitempty"` // why it cannot go on
}

// ended is what a worker leaves behind when it ends in order.
type ended struct {
	Errors     []string `json:"errors,omitempty"`     // of closing
	Goroutines int      `json:"goroutines,omitempty"` // more than at the start
	Stacks     string   `json:"stacks,omitempty"`     // of these
	Files      []string `json:"files,omitempty"`      // and connections that were not open at the start
}

// sender writes lines. It may be used concurrently.
type sender struct {
	mu  sync.Mutex
	enc *json.Encoder
}

func newSender(w io.Writer) *sender { return &sender{enc: json.NewEncoder(w)} }

// send writes one line. The receiver may have ended; then nothing can be done.
func (m *sender) send(what any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_ = m.enc.Encode(what)
}
