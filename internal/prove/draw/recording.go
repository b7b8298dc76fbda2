package draw

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// header is the first line of a recording, in the format asciicast v2.
type header struct {
	Version int     `json:"version"`
	Width   int     `json:"width"`
	Height  int     `json:"height"`
	Idle    float64 `json:"idle_time_limit"`
	Command string  `json:"command"`
}

// Record writes what a command prints, with the time of each line to a tenth of a second, as an
// asciicast v2.
func Record(w io.Writer, command string, output io.Reader) error {
	var events bytes.Buffer
	began, widest, lines := time.Now(), 0, 1
	in := bufio.NewScanner(output)
	for ; in.Scan(); lines++ {
		text, err := json.Marshal([]any{math.Round(10*time.Since(began).Seconds()) / 10, "o", in.Text() + "\r\n"})
		if err != nil {
			return err
		}
		widest = max(widest, len([]rune(in.Text())))
		events.Write(append(text, '\n'))
	}
	head, err := json.Marshal(header{Version: 2, Width: widest, Height: lines, Idle: 1, Command: command})
	if err == nil {
		err = in.Err()
	}
	if err == nil {
		_, err = w.Write(append(append(head, '\n'), events.Bytes()...))
	}
	return err
}

// terminal is the style of a recording. Each line appears once, at its time, and stays. A reader who
// wants no motion sees all of them at once.
const terminal = `.t{font-size:15px;font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}
@keyframes p{from{opacity:0}}
@media(prefers-reduced-motion:no-preference){.t{animation:p 1s step-end backwards;animation-delay:calc(var(--t)*1s - 1s)}}
`

// recording draws a terminal in which the lines appear. A pause is cut to the recording's limit.
// Lines that came at once are a tenth of a second apart, so that the eye can follow.
func (p *picture) recording(text []byte) (string, error) {
	var head header
	in := json.NewDecoder(bytes.NewReader(text))
	if err := in.Decode(&head); err != nil {
		return "", err
	}
	show := func(at float64, y int, class, line string) {
		p.add(`<text x="24" y="%d" class="t %s" style="--t:%.1f">%s</text>`, y, class, at, escape(line))
	}
	p.title = head.Command
	y, at, last := 34, 1.0, 0.0
	show(0, y, "s", "$ "+head.Command)
	for in.More() {
		var event [3]any
		if err := in.Decode(&event); err != nil {
			return "", err
		}
		when, _ := event[0].(float64)
		line, ok := event[2].(string)
		if !ok {
			return "", fmt.Errorf("%v is no event", event)
		}
		at += min(max(when-last, 0.1), head.Idle)
		last, y = when, y+20
		if line = strings.TrimRight(line, "\r\n"); line != "" {
			show(at, y, "", line)
		}
	}
	return p.svg(float64(y+20), terminal), nil
}
