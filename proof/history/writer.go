package history

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"
)

// A history is kept as lines of JSON, each an Event or a part of one:
//
//	{"kind":"claim","process":1,"id":7,"call":…, what was asked}     before the call leaves
//	{"process":1,"id":7,"return":…, what was answered}               after the answer came
//	{"kind":"enter","process":1,"call":…,"return":…, …}              what is whole at once
//
// A line without a kind answers the one of the same process, restarts and id. One that is
// never answered is a call whose answer nobody heard.

// Writer writes the lines of one restarts of a process. Each call of a method is one Write
// of whole lines, so that a process that is killed has written all that it began, if w is
// a file that is not buffered. Each restarts needs a file of its own: the last line of one
// that was killed may be cut short, and only the last line of a file may be.
//
// It may be used concurrently.
type Writer struct {
	// Now is the clock, if not nil: the methods set the times that it tells. It is
	// not to be changed once the Writer is in use.
	Now func() time.Duration

	process, restarts int

	mu     sync.Mutex
	w      io.Writer
	memory *Memory // in place of w
	last   uint64
	buf    []byte
}

// NewWriter returns a Writer for a process, in its so manieth restarts from 0 on.
func NewWriter(w io.Writer, process, restarts int) *Writer {
	return &Writer{w: w, process: process, restarts: restarts}
}

// Call writes down what is about to be asked. It sets each event's Process, Restarts and ID,
// and with Now its Call; what was answered is not written. After an error the call must
// not leave, as nobody would know of it.
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

// Return writes down what was answered to events that Call has seen. With Now it sets
// each event's Return.
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

// Happened writes down what is whole: what has Call and Return already, or with Now what
// happens at this moment. It sets each event's Process and Restarts, unless the writer's
// process is 0: whoever runs the workers tells of all of them.
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

// answered returns the part of an event that tells of the answer.
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

// join adds to an event what a line says of its answer.
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

// maxPlain is up to which length a record's data is written as it is.
const maxPlain = 64

// Data returns how an Event's Data spells a record: short text as it is, in quotes, and
// anything else as its digest and length. Two records are equal if their spellings are.
func Data(record []byte) string {
	if len(record) <= maxPlain && utf8.Valid(record) {
		return `"` + string(record) + `"`
	}
	sum := sha256.Sum256(record)
	return fmt.Sprintf("%s of %d bytes", hex.EncodeToString(sum[:16]), len(record))
}
