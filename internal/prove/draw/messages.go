package draw

import (
	"fmt"
	"slices"
	"strings"
)

// The height of a line of text, and about how wide a character is in the widest of the fonts.
const (
	lineHeight = 17
	charWidth  = 7.4
)

// crash in the column "to" says that its actor has ended.
const crash = "✗"

// messages draws a table of messages from the top down: time (perhaps) | from | to | what | the key.
// A row without "to" is a thing that an actor does by itself. The last column says from when on the
// key is in a state.
func (p *picture) messages(rows [][]string) (string, error) {
	head := rows[0]
	timed := len(head) == 5 && head[0] == "time"
	if !timed {
		head = append([]string{"time"}, head...)
	}
	if !slices.Equal(head, []string{"time", "from", "to", "what", "the key"}) {
		return "", fmt.Errorf("a picture of messages has no columns %q", rows[0])
	}
	var messages []message
	var actors []string
	for _, row := range rows[1:] {
		if !timed {
			row = append([]string{""}, row...)
		}
		if len(row) != 5 {
			return "", fmt.Errorf("the row %q does not have five cells", row)
		}
		messages = append(messages, message{row[0], row[1], row[2], row[3], row[4]})
		for _, actor := range row[1:3] {
			if actor != "" && actor != crash && !slices.Contains(actors, actor) {
				actors = append(actors, actor)
			}
		}
	}
	l := lanes{picture: p, x: map[string]float64{}, since: map[string]float64{}}
	first, last := 60.0, band-80.0
	if timed {
		first = 120
	}
	l.gap = (last - first) / float64(len(actors)-1)
	for i, actor := range actors {
		l.x[actor] = first + float64(i)*l.gap
		p.text(l.x[actor], 28, "s i", actor)
		l.since[actor] = 38
	}
	p.text(band+bandWidth/2, 28, "s i", "the key")
	y := 46.0
	for _, m := range messages {
		y = l.message(y, m)
	}
	y += 16
	for _, actor := range actors {
		l.end(actor, y)
	}
	l.enter(y, message{})
	// The lifelines are below everything else.
	text := p.body.String()
	p.body.Reset()
	p.body.WriteString(l.below.body.String() + text)
	return p.svg(y + 14), nil
}

// message is a row of the table.
type message struct{ time, from, to, what, key string }

// The band of the key's states.
const (
	band      = 652.0
	bandWidth = 132.0
)

// lanes are what is drawn: a lane for each actor, and the band of the key.
type lanes struct {
	*picture
	below picture
	gap   float64            // between two lanes
	x     map[string]float64 // of each actor
	since map[string]float64 // where the lifeline's last part begins
	state message            // whose key is not over yet
	from  float64            // where the state began
}

// message draws one message below y, and returns where it ends.
func (l *lanes) message(y float64, m message) float64 {
	at, to := l.x[m.from], l.x[m.to]
	alone := m.to == "" || m.to == crash
	room, middle, class := l.gap, (at+to)/2, "i"
	switch {
	case m.from == "": // the key alone
		room, middle, class = l.gap*float64(len(l.x)-1), band-16, "m e"
	case alone && at+l.gap > band: // to the left, because the band is to the right
		middle, class = at-12, "e"
	case alone:
		middle, class = at+12, ""
	default:
		room = max(to-at, at-to)
	}
	lines := wrap(m.what, int((room-20)/charWidth))
	top := y
	for _, line := range lines {
		y += lineHeight
		l.text(middle, y, class, line)
	}
	arrow := y + 7
	if alone {
		arrow = (top+y)/2 + 5
	}
	if m.time != "" {
		l.text(16, arrow+4, "m", m.time)
	}
	switch {
	case m.from == "":
	case m.to == crash:
		l.add(`<path d="M%.1f %.1fl12 12m-12 0l12-12" class="k z"/>`, at-6, arrow-6)
		l.end(m.from, arrow)
	case m.to == "":
		l.box(at-5, top+6, 10, y-top, "d")
	default:
		back := 1.0
		if to > at {
			back = -1
		}
		l.line(at, arrow, to+back*2, arrow, "k")
		l.add(`<path d="M%.1f %.1fl%.0f -4v8z" class="h"/>`, to, arrow, back*9)
	}
	for _, actor := range []string{m.from, m.to} {
		if m.to != crash && actor != "" && l.since[actor] == 0 { // it has started again
			l.since[actor] = top
		}
	}
	if m.key != "" {
		l.enter(arrow, m)
	}
	return max(y, arrow) + 9
}

// end ends the lifeline of an actor, unless it has ended.
func (l *lanes) end(actor string, y float64) {
	if from := l.since[actor]; from != 0 {
		l.below.line(l.x[actor], from, l.x[actor], y, "l")
	}
	l.since[actor] = 0
}

// enter ends the state of the key, and begins another one.
func (l *lanes) enter(y float64, m message) {
	if l.state.key != "" {
		state, _, _ := strings.Cut(l.state.key, " ")
		class := map[string]string{"held": "a", "done": "c", "abandoned": "b", "unknown": "b"}[strings.TrimSuffix(state, ",")]
		if class == "" {
			class = "o"
		}
		l.below.box(band, l.from, bandWidth, y-l.from, class)
		for i, line := range wrap(l.state.key, 17) {
			l.text(band+10, l.from+16+float64(i)*lineHeight, "n", line)
		}
	}
	l.state, l.from = m, y
}

// wrap breaks a text into lines of at most so many characters.
func wrap(text string, most int) (lines []string) {
	for word := range strings.FieldsSeq(text) {
		if n := len(lines); n > 0 && len([]rune(lines[n-1]+" "+word)) <= most {
			lines[n-1] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}
