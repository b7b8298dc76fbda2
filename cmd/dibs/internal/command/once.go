package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dibs-go/dibs"
)

// onceRun is the record of --once-per. Times of this host are for people: what counts is
// the record's age by the store's clock, and how long the run took.
type onceRun struct {
	Command string    `json:"command"`
	Ended   time.Time `json:"ended"`
	Took    int64     `json:"took_ms"`
	Exit    int       `json:"exit"`
}

// readRun reads a record; what cannot be read was a success that took no time.
func readRun(r dibs.Record) (run onceRun) {
	_ = json.Unmarshal(r.Data, &run)
	return run
}

func (r onceRun) took() time.Duration { return time.Duration(r.Took) * time.Millisecond }

// since is how long ago the run began, or ended.
func (r onceRun) since(record dibs.Record, from string) time.Duration {
	if from == fromEnd {
		return record.Age
	}
	return record.Age + r.took()
}

// acquire asks for the key.
func (h *hold) acquire(ctx context.Context, client *dibs.Client) (*dibs.Lease, error) {
	o := dibs.AcquireOptions{
		NoWait:  h.skip,
		Wait:    h.wait,
		Permits: h.permits,
		MaxAge:  h.oncePer,
		Margin:  h.grace() + h.lease/50,
		Label:   filepath.Base(h.command[0]),
		Detach:  true, // a signal ends the command, and the command's end the lease
	}
	for {
		lease, err := client.Acquire(ctx, h.key, &o)
		done, isDone := errors.AsType[*dibs.DoneError](err)
		if !isDone {
			return lease, err
		}
		run := readRun(done.Record)
		if run.since(done.Record, h.from) < h.oncePer && (run.Exit == 0 || h.failed) {
			return nil, err
		}
		// This record does not answer the caller: it is of a failure, or of a run that
		// began too long ago. A newer one would.
		o.MaxAge = max(done.Record.Age-1, 0)
	}
}

// doneText says what was done already.
func (h *hold) doneText(r dibs.Record) string {
	run := readRun(r)
	what := "succeeded"
	if run.Exit != 0 {
		what = fmt.Sprintf("failed with %d", run.Exit)
	}
	if h.from == fromStart {
		return fmt.Sprintf("%s %s in a run that began %s ago, which is within %v", strconv.Quote(h.key), what, span(run.since(r, fromStart)), h.oncePer)
	}
	return fmt.Sprintf("%s %s %s ago, which is within %v", strconv.Quote(h.key), what, span(r.Age), h.oncePer)
}

// complete leaves the record of a run for so long, trying for as long as the lease is held
// while the store does not answer, or for as long as it would last while the store is busy
// with the key, which may not keep the lease from being renewed.
func (p *program) complete(lease *dibs.Lease, h *hold, run onceRun, keep time.Duration) error {
	run.Command, run.Ended = filepath.Base(h.command[0]), time.Now().UTC()
	data, err := json.Marshal(run)
	if err != nil {
		return err
	}
	for began := time.Now(); ; {
		err := lease.Complete(lease.Context(), data, keep)
		busy := errors.Is(err, dibs.ErrBusy) && time.Since(began) < h.lease
		if !errors.Is(err, dibs.ErrStore) && !busy || lease.Err() != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}
