package testkit

import (
	"bytes"
	"strings"
	"sync"
)

// Output keeps what is written to it, by any number of goroutines: the output of a process, or a
// log.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write keeps the text.
func (o *Output) Write(text []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(text)
}

// String returns all that was written so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// With returns the lines that have all the texts.
func (o *Output) With(texts ...string) (lines []string) {
next:
	for line := range strings.Lines(o.String()) {
		for _, text := range texts {
			if !strings.Contains(line, text) {
				continue next
			}
		}
		lines = append(lines, line)
	}
	return lines
}
