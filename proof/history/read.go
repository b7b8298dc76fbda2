package history

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
)

// Read returns the events of all that the readers have, in the order of Call. An answer
// must be in the same reader as its call. What a crash cut short, the end of a reader
// without a newline, is left out.
//
// It returns an error that names the line if any other line cannot be understood.
func Read(readers ...io.Reader) ([]Event, error) {
	parts := make([][]Event, len(readers))
	errs := make([]error, len(readers))
	var all sync.WaitGroup
	for i, r := range readers {
		all.Go(func() {
			parts[i], errs[i] = readOne(r)
			if errs[i] != nil && len(readers) > 1 {
				errs[i] = fmt.Errorf("history: reader %d: %w", i, errs[i])
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	events := slices.Concat(parts...)
	Sort(events)
	return events, nil
}

// ReadFiles is Read for files.
func ReadFiles(names ...string) ([]Event, error) {
	parts := make([][]Event, len(names))
	for i, name := range names {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("history: %w", err)
		}
		parts[i], err = readOne(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	events := slices.Concat(parts...)
	Sort(events)
	return events, nil
}

// Sort puts events in the order in which Read returns them: by Call, and what was called
// at once in the order in which each process called.
func Sort(events []Event) {
	slices.SortStableFunc(events, func(a, b Event) int {
		return cmp.Or(
			cmp.Compare(a.Call, b.Call),
			cmp.Compare(a.Process, b.Process),
			cmp.Compare(a.Life, b.Life),
			cmp.Compare(a.ID, b.ID),
		)
	})
}

// call names the event that a line answers.
type call struct {
	process, life int
	id            uint64
}

func readOne(r io.Reader) ([]Event, error) {
	var events []Event
	open := map[call]int{} // what was not answered yet, by its place in events
	lines := bufio.NewReaderSize(r, 1<<18)
	for n := 1; ; n++ {
		line, err := readLine(lines)
		if err == io.EOF {
			return events, nil // whatever is in line was cut short
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("line %d is not one of a history: %w", n, err)
		}
		id := call{e.Process, e.Life, e.ID}
		switch {
		case e.Kind != "":
			if e.ID != 0 && e.Return == 0 {
				if _, twice := open[id]; twice {
					return nil, fmt.Errorf("line %d calls %d of process %d a second time; each life needs a file of its own", n, e.ID, e.Process)
				}
				open[id] = len(events)
			}
			events = append(events, e)
		default:
			i, ok := open[id]
			if !ok {
				return nil, fmt.Errorf("line %d answers call %d of process %d, which was not called", n, e.ID, e.Process)
			}
			delete(open, id)
			events[i].join(&e)
		}
	}
}

// readLine returns the next line, without its newline, of any length. The line is good
// until the next call.
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
