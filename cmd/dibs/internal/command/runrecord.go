package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dibs-go/dibs/store"
)

// runRecord is the version of onceRun. It tells the records of dibs run apart from those of other
// programs.
const runRecord = 1

// onceRun is the record of --once-per. Host, Began and Ended, by that host's clock, are for
// people. The program uses the record's age by the store's clock, and how long the run took.
type onceRun struct {
	Version int       `json:"dibs_run"`
	Command string    `json:"command"`
	Host    string    `json:"host"`
	Began   time.Time `json:"began"`
	Ended   time.Time `json:"ended"`
	Took    int64     `json:"took_ms"`
	Exit    int       `json:"exit"`
}

// readRun reads a record. ok is false for the record of another program, which counts as a success
// that took no time.
func readRun(data []byte) (run onceRun, ok bool) {
	if err := json.Unmarshal(data, &run); err != nil || run.Version != runRecord {
		return onceRun{}, false
	}
	return run, true
}

func (r onceRun) took() time.Duration { return time.Duration(r.Took) * time.Millisecond }

// outcome describes how the run ended.
func (r onceRun) outcome() string {
	if r.Exit == 0 {
		return "succeeded, exit code 0"
	}
	return fmt.Sprintf("failed, exit code %d", r.Exit)
}

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
	run, ok := readRun(r.Data)
	if !ok {
		return nil
	}
	return &runJSON{Succeeded: run.Exit == 0, Exit: run.Exit, Host: run.Host, Command: run.Command, Began: run.Began, TookMS: run.Took}
}

// writeRun writes the lines of dibs show about the run that a record describes.
func writeRun(w io.Writer, r *store.RecordInfo) {
	run, ok := readRun(r.Data)
	if !ok {
		return
	}
	began := run.Began.UTC().Format(time.RFC3339)
	for _, line := range [][2]string{
		{"run", run.outcome()},
		{"command", quote(run.Command)},
		{"host", quote(run.Host)},
		{"began", began + ", " + span(r.Age+run.took()) + " ago; it took " + span(run.took())},
	} {
		fmt.Fprintln(w, strings.TrimSpace(fmt.Sprintf("%-9s  %s", line[0], line[1])))
	}
}
