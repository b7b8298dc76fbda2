package command

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/runrecord"
	"github.com/dibs-go/dibs/store"
)

// runJSON is a run for programs.
type runJSON struct {
	Succeeded bool      `json:"succeeded"`
	Exit      int       `json:"exit"`
	Host      string    `json:"host"`
	Command   string    `json:"command"`
	Began     time.Time `json:"began"` // by the clock of that host
	TookMS    int64     `json:"took_ms"`
}

// runOf returns the run that a record describes, or nil.
func runOf(r *store.RecordInfo) *runJSON {
	run, ok := runrecord.Read(r.Data)
	if !ok {
		return nil
	}
	return &runJSON{Succeeded: run.Exit == 0, Exit: run.Exit, Host: run.Host, Command: run.Command, Began: run.Began, TookMS: run.TookMS}
}

// writeRun writes the lines of dibs show about the run that a record describes.
func writeRun(w io.Writer, r *store.RecordInfo) {
	run, ok := runrecord.Read(r.Data)
	if !ok {
		return
	}
	began := run.Began.UTC().Format(time.RFC3339)
	for _, line := range [][2]string{
		{"run", run.Outcome()},
		{"command", quote(run.Command)},
		{"host", quote(run.Host)},
		{"began", began + ", " + span(r.Age+run.Took()) + " ago; it took " + span(run.Took())},
	} {
		fmt.Fprintln(w, strings.TrimSpace(fmt.Sprintf("%-9s  %s", line[0], line[1])))
	}
}
