// Package progress shows on a terminal that long work lives: one line that changes. Elsewhere it
// shows nothing.
package progress

import (
	"io"
	"sync"
	"unicode/utf8"

	"github.com/dibs-go/dibs/internal/terminal"
)

// width is how many columns the line has at most, because a longer one would wrap.
const width = 79

// erase moves the cursor to the beginning of the line, and erases it.
const erase = "\r\x1b[K"

// Line is the last line of a terminal. Other output of the program goes through Write, which moves
// the line down. A Line can be used by several goroutines.
type Line struct {
	w  io.Writer
	on bool

	mu   sync.Mutex
	text string // under mu
}

// New returns a line on w. It is shown if w is a terminal, and TERM is not dumb.
func New(w io.Writer, getenv func(string) string) *Line {
	return &Line{w: w, on: terminal.Is(w) && getenv("TERM") != "dumb"}
}

// On reports whether the line is shown.
func (l *Line) On() bool { return l.on }

// Show shows another text. An empty text removes the line.
func (l *Line) Show(text string) {
	if !l.on {
		return
	}
	if utf8.RuneCountInString(text) > width {
		text = string([]rune(text)[:width-1]) + "…"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if text != l.text {
		l.text = text
		_, _ = io.WriteString(l.w, erase+text) // a terminal that is gone ends the program by other means
	}
}

// Write writes whole lines above the line.
func (l *Line) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text == "" {
		return l.w.Write(p)
	}
	if _, err := io.WriteString(l.w, erase); err != nil {
		return 0, err
	}
	n, err := l.w.Write(p)
	if err == nil {
		_, err = io.WriteString(l.w, l.text)
	}
	return n, err
}
