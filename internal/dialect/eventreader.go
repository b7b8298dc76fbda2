package dialect

import (
	"bytes"
	"strings"
)

// An eventReader finds the messages in an event stream while it passes, as
// https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation says.
type eventReader struct {
	data func([]byte)      // gets the next part of a message
	end  func(counts bool) // is called at the end of each; counts is false if the event has another name

	begun  int    // bytes of the byte order mark that were read, and one more after the beginning
	cr     bool   // the last byte was a CR
	field  []byte // name of the line's field, cut
	valued bool   // the colon was read
	spaced bool   // so was the space that may follow it, or the beginning of the value
	name   []byte // of the event, cut
	lines  int    // of data in the event
	named  bool   // the event is not a message
}

const (
	byteOrderMark = "\ufeff" // can begin a stream
	maxEventField = 16       // is longer than every name that an eventReader looks for
)

// write takes the next part of the stream.
func (e *eventReader) write(p []byte) {
	for len(p) > 0 {
		if e.valued && string(e.field) == "data" {
			p = e.value(p)
			continue
		}
		e.next(p[0])
		p = p[1:]
	}
}

// value takes the next part of a line of data, up to its end, and returns the rest.
func (e *eventReader) value(p []byte) []byte {
	i := bytes.IndexAny(p, "\r\n")
	switch {
	case i == 0:
		e.next(p[0])
		return p[1:]
	case i < 0:
		i = len(p)
	}
	e.data(p[len(e.space(p[:1])):i])
	return p[i:]
}

// space returns the space that may follow the colon.
func (e *eventReader) space(p []byte) []byte {
	if first := !e.spaced; first && p[0] == ' ' {
		e.spaced = true
		return p
	}
	e.spaced = true
	return nil
}

// next takes the next byte of anything else than a value of data.
func (e *eventReader) next(c byte) {
	if e.begun < len(byteOrderMark) {
		if c == byteOrderMark[e.begun] {
			e.begun++
			return
		}
		e.field = append(e.field, byteOrderMark[:e.begun]...)
	}
	if e.begun <= len(byteOrderMark) {
		e.begun = len(byteOrderMark) + 1
	}
	cr := e.cr
	e.cr = c == '\r'
	switch {
	case c == '\n' && cr: // of the line that has ended
	case c == '\n' || c == '\r':
		e.line()
	case !e.valued && c == ':':
		e.valued = true
		e.separate()
	case !e.valued:
		e.field = appendCut(e.field, c)
	case len(e.space([]byte{c})) == 0:
		e.name = appendCut(e.name, c)
	}
}

// separate separates a line of data from the one before.
func (e *eventReader) separate() {
	if string(e.field) == "data" {
		if e.lines > 0 {
			e.data([]byte{'\n'})
		}
		e.lines++
	}
}

// line takes the end of a line.
func (e *eventReader) line() {
	field, name := string(e.field), string(e.name)
	if !e.valued {
		e.separate()
	}
	empty := field == "" && !e.valued
	e.field, e.name, e.valued, e.spaced = e.field[:0], e.name[:0], false, false
	switch {
	case field == "event":
		e.named = name != "" && name != "message"
	case empty:
		if e.lines > 0 {
			e.end(!e.named)
		}
		e.lines, e.named = 0, false
	}
}

// finish takes the end of the stream as that of an event.
func (e *eventReader) finish() { e.write([]byte("\n\n")) }

// appendCut appends to a text of which only the beginning is of use.
func appendCut(text []byte, c byte) []byte {
	if len(text) > maxEventField {
		return text
	}
	return append(text, c)
}

// lineEnds makes each end of a line one that an event stream can repeat.
var lineEnds = strings.NewReplacer("\r\n", "\n", "\r", "\n")
