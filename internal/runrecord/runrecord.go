// Package runrecord has the record that dibs run leaves with --once-per.
package runrecord

import (
	"encoding/json"
	"fmt"
	"time"
)

// version tells these records apart from those of other programs.
const version = 1

// Max is how many bytes a record has at most that is read for a person.
const Max = 4 << 10

// Run is a run. Host, Began and Ended, by that host's clock, are for people. The program uses the
// record's age by the store's clock, and how long the run took.
type Run struct {
	Version int       `json:"dibs_run"`
	Command string    `json:"command"`
	Host    string    `json:"host"`
	Began   time.Time `json:"began"`
	Ended   time.Time `json:"ended"`
	TookMS  int64     `json:"took_ms"`
	Exit    int       `json:"exit"`
}

// Read reads a record. ok is false for the record of another program, which counts as a success
// that took no time.
func Read(data []byte) (run Run, ok bool) {
	if err := json.Unmarshal(data, &run); err != nil || run.Version != version {
		return Run{}, false
	}
	return run, true
}

// Record returns the record of the run.
func (r Run) Record() ([]byte, error) {
	r.Version = version
	return json.Marshal(r)
}

// Took is how long the run took.
func (r Run) Took() time.Duration { return time.Duration(r.TookMS) * time.Millisecond }

// Outcome describes how the run ended.
func (r Run) Outcome() string {
	if r.Exit == 0 {
		return "succeeded, exit code 0"
	}
	return fmt.Sprintf("failed, exit code %d", r.Exit)
}
