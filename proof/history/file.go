package history

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
	"unicode/utf8"
)

// Read returns the events of a file, in the order of Call. It leaves out a last line without a
// newline, because a crash has cut it short. It returns an error that names any other line which
// it cannot read.
func Read(r io.Reader) ([]Event, error) {
	events, err := read(r)
	Sort(events)
	return events, err
}

// ReadFiles is Read for several files together.
func ReadFiles(names ...string) ([]Event, error) {
	var events []Event
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("history: %w", err)
		}
		one, err := read(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		events = append(events, one...)
	}
	Sort(events)
	return events, nil
}

// Sort puts events in the order of Call, and those of one moment in the order of their process.
func Sort(events []Event) {
	slices.SortStableFunc(events, func(a, b Event) int {
		return cmp.Or(
			cmp.Compare(a.Call, b.Call),
			cmp.Compare(a.Process, b.Process),
			cmp.Compare(a.Restarts, b.Restarts),
			cmp.Compare(a.ID, b.ID),
		)
	})
}

// call names the event that a line answers.
type call struct {
	process, restarts int
	id                uint64
}

// collection is events, and the calls among them that have no answer yet.
type collection struct {
	events []Event
	open   map[call]int // by place in events
}

// add adds an event or an answer.
func (c *collection) add(e Event) error {
	id := call{e.Process, e.Restarts, e.ID}
	i, open := c.open[id]
	switch {
	case e.Kind != "" && e.ID != 0 && e.Return == 0 && open:
		return fmt.Errorf("calls %d of process %d a second time; each restarts needs a file of its own", e.ID, e.Process)
	case e.Kind == "" && !open:
		return fmt.Errorf("answers call %d of process %d, which was not called", e.ID, e.Process)
	case e.Kind == "":
		delete(c.open, id)
		c.events[i].join(&e)
		return nil
	case e.ID != 0 && e.Return == 0:
		if c.open == nil {
			c.open = map[call]int{}
		}
		c.open[id] = len(c.events)
	}
	c.events = append(c.events, e)
	return nil
}

// Memory is a history in memory.
type Memory struct {
	mu  sync.Mutex
	all collection
}

// Writer returns a Writer for a process that was restarted that often.
func (m *Memory) Writer(process, restarts int) *Writer {
	return &Writer{memory: m, process: process, restarts: restarts}
}

// Events returns what was written so far, as Read does.
func (m *Memory) Events() []Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	events := slices.Clone(m.all.events)
	Sort(events)
	return events
}

func read(r io.Reader) ([]Event, error) {
	var c collection
	lines := bufio.NewReaderSize(r, 1<<18)
	for n := 1; ; n++ {
		line, err := readLine(lines)
		if err == io.EOF {
			return c.events, nil // whatever is in line was cut short
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("line %d is not one of a history: %w", n, err)
		}
		if err := c.add(e); err != nil {
			return nil, fmt.Errorf("line %d %w", n, err)
		}
	}
}

// readLine returns the next line, without its newline. It is valid until the next call.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		line = bytes.Clone(line)
		var rest []byte
		rest, err = r.ReadBytes('\n')
		line = append(line, rest...)
	}
	if err != nil {
		return nil, err
	}
	return line[:len(line)-1], nil
}

// A history is kept as JSON lines, each an Event or a part of one:
//
//	{"kind":"claim","process":1,"id":7,"call":…, what was asked}     before the call leaves
//	{"process":1,"id":7,"return":…, what was answered}               after the answer came
//	{"kind":"enter","process":1,"call":…,"return":…, …}              what is whole at once
//
// A line without a kind answers the one of the same process, restarts and id. One that is
// never answered is a call without an answer.

// Writer writes the lines of one process. Each call of a method is one Write of whole lines, so
// that a killed process has written everything that it began, if w is a file without a buffer.
// Each process needs a file of its own, because only the last line of a file may be cut short.
//
// It may be used concurrently.
type Writer struct {
	// Now is the clock, if not nil; the methods then set the times. It must not change once the
	// Writer is in use.
	Now func() time.Duration
	// Ended, if not nil, reports whether the process has ended: then nothing is written.
	Ended func() bool

	process, restarts int

	mu     sync.Mutex
	w      io.Writer
	memory *Memory // in place of w
	last   uint64
	buf    []byte
}

// NewWriter returns a Writer for a process that was restarted that often.
func NewWriter(w io.Writer, process, restarts int) *Writer {
	return &Writer{w: w, process: process, restarts: restarts}
}

// Call writes calls before they leave. It sets each event's Process, Restarts and ID, and with
// Now its Call. It does not write answers. After an error the call must not leave, because the
// history would lack it.
func (w *Writer) Call(events []Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = w.buf[:0]
	now := w.now()
	for i := range events {
		w.last++
		e := &events[i]
		e.Process, e.Restarts, e.ID = w.process, w.restarts, w.last
		e.Call = cmp.Or(now, e.Call)
		asked := *e
		asked.Return = 0
		if err := w.add(&asked); err != nil {
			return err
		}
	}
	return w.flush()
}

// Return writes the answers of events that Call has written. With Now it sets each event's
// Return.
func (w *Writer) Return(events []Event) error {
	now := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = w.buf[:0]
	for i := range events {
		events[i].Return = cmp.Or(now, events[i].Return)
		answered := events[i].answered()
		if err := w.add(&answered); err != nil {
			return err
		}
	}
	return w.flush()
}

// Happened writes whole events: with Call and Return, or with Now those of this moment. It sets
// each event's Process and Restarts, unless the writer's process is 0, the runner's.
func (w *Writer) Happened(events ...Event) error {
	now := w.now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = w.buf[:0]
	for _, e := range events {
		if w.process != 0 {
			e.Process, e.Restarts = w.process, w.restarts
		}
		e.Call = cmp.Or(e.Call, now)
		e.Return = cmp.Or(e.Return, now)
		if err := w.add(&e); err != nil {
			return err
		}
	}
	return w.flush()
}

func (w *Writer) now() time.Duration {
	if w.Now == nil {
		return 0
	}
	return w.Now()
}

func (w *Writer) add(e *Event) error {
	if w.Ended != nil && w.Ended() {
		return nil
	}
	if w.memory != nil {
		w.memory.mu.Lock()
		defer w.memory.mu.Unlock()
		return w.memory.all.add(*e)
	}
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("history: write an event: %w", err)
	}
	w.buf = append(append(w.buf, line...), '\n')
	return nil
}

func (w *Writer) flush() error {
	if w.memory != nil {
		return nil
	}
	if _, err := w.w.Write(w.buf); err != nil {
		return fmt.Errorf("history: write to the file of process %d (is there room on the disk?): %w", w.process, err)
	}
	return nil
}

// answered returns the part of an event that is its answer.
func (e *Event) answered() Event {
	a := Event{
		Process: e.Process, Restarts: e.Restarts, ID: e.ID, Return: e.Return,
		State: e.State, Error: e.Error, Fence: e.Fence, Attempt: e.Attempt,
		Ahead: e.Ahead, Queued: e.Queued, Left: e.Left, Text: e.Text,
	}
	if e.Kind == Claim {
		a.Data = e.Data // the record's; what a settlement has was asked
	}
	return a
}

// join adds an answer to its event.
func (e *Event) join(a *Event) {
	e.Return, e.State, e.Error = a.Return, a.State, a.Error
	e.Fence, e.Attempt, e.Ahead, e.Queued, e.Left = a.Fence, a.Attempt, a.Ahead, a.Queued, a.Left
	if a.Data != "" {
		e.Data = a.Data
	}
	if a.Text != "" {
		e.Text = a.Text
	}
}

// maxPlain is up to which length the data of a record is written as it is.
const maxPlain = 64

// Data returns how an event has the data of a record: short text in quotes, and anything else as
// its digest and length. Two records are equal if their Data is.
func Data(record []byte) string {
	if len(record) <= maxPlain && utf8.Valid(record) {
		return `"` + string(record) + `"`
	}
	sum := sha256.Sum256(record)
	return fmt.Sprintf("%s of %d bytes", hex.EncodeToString(sum[:16]), len(record))
}
