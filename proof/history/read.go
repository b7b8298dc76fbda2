package history

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
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
