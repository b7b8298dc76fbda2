package command

import (
	"io"
	"strings"
	"unicode/utf8"

	"github.com/dibs-go/dibs/internal/terminal"
	"github.com/dibs-go/dibs/store"
)

// painter colours what is bad. Only a terminal gets colours, unless NO_COLOR is set
// (https://no-color.org) or TERM is dumb.
type painter struct{ on bool }

func (p *program) painter(w io.Writer) painter {
	return painter{on: terminal.Is(w) && p.env.Getenv("NO_COLOR") == "" && p.env.Getenv("TERM") != "dumb"}
}

// The colours of SGR, which every terminal knows.
const (
	plain  = ""
	red    = "31" // needs somebody
	yellow = "33" // may need somebody
)

func (p painter) paint(colour, text string) string {
	if !p.on || colour == plain {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// colourOf returns the colour of a state.
func colourOf(c store.Condition) string {
	switch c {
	case store.ConditionUnknown:
		return red
	case store.ConditionAbandoned:
		return yellow
	}
	return plain
}

// colourOfSeverity returns the colour of a finding.
func colourOfSeverity(s store.Severity) string {
	switch s {
	case store.SeverityDangerous:
		return red
	case store.SeverityAdvice:
		return yellow
	}
	return plain
}

// paintColumn colours a column of a table, in which row i+1 has the colour that colour(i) returns.
func (p painter) paintColumn(table, title string, colour func(row int) string) string {
	lines := strings.SplitAfter(table, "\n")
	before, _, found := strings.Cut(lines[0], title)
	if !p.on || !found {
		return table
	}
	at := utf8.RuneCountInString(before)
	for i := 1; i < len(lines); i++ {
		runes := []rune(lines[i])
		if len(runes) <= at {
			continue
		}
		cell, _, _ := strings.Cut(string(runes[at:]), " ")
		rest := string(runes[at+utf8.RuneCountInString(cell):])
		lines[i] = string(runes[:at]) + p.paint(colour(i-1), cell) + rest
	}
	return strings.Join(lines, "")
}
