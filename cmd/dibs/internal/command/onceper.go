//go:build unix

package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/runrecord"
)

// since is how long ago the run began, or ended.
func since(run runrecord.Run, record dibs.Record, from string) time.Duration {
	if from == fromEnd {
		return record.Age
	}
	return record.Age + run.Took()
}

// acquire acquires the key.
func (h *held) acquire(ctx context.Context, client *dibs.Client) (*dibs.Lease, error) {
	o := dibs.AcquireOptions{
		Wait:        h.wait,
		Permits:     h.permits,
		MaxAge:      h.oncePer,
		StopTimeout: h.grace() + h.lease/50,
		Label:       filepath.Base(h.command[0]),
		Detach:      true, // because a signal ends the command, and the lease lasts until the command has ended
	}
	acquire := client.Acquire
	if h.skip {
		acquire = client.TryAcquire
	}
	for {
		lease, err := acquire(ctx, h.key, &o)
		done, isDone := errors.AsType[*dibs.DoneError](err)
		if !isDone {
			return lease, err
		}
		run, _ := runrecord.Read(done.Record.Data)
		if since(run, done.Record, h.from) < h.oncePer && (run.Exit == 0 || h.failed) {
			return nil, err
		}
		// The record is of a failed run, or of a run that began too long ago. Only a newer
		// record ends the next attempt.
		o.MaxAge = max(done.Record.Age-1, 0)
	}
}

// doneText describes the run of a record.
func (h *held) doneText(r dibs.Record) string {
	run, _ := runrecord.Read(r.Data)
	what := "succeeded"
	if run.Exit != 0 {
		what = fmt.Sprintf("failed with %d", run.Exit)
	}
	if h.from == fromStart {
		return fmt.Sprintf("%s %s in a run that began %s ago, which is within %v", strconv.Quote(h.key), what, span(since(run, r, fromStart)), h.oncePer)
	}
	return fmt.Sprintf("%s %s %s ago, which is within %v", strconv.Quote(h.key), what, span(r.Age), h.oncePer)
}

// complete stores the record of a run. While the store does not answer, it retries until
// the lease is lost. While the store is busy with the key, it retries for the time of a
// lease, because renewals may succeed meanwhile.
func (p *program) complete(lease *dibs.Lease, h *held, run runrecord.Run, keep time.Duration) error {
	run.Command = filepath.Base(h.command[0])
	run.Host, _ = os.Hostname()
	data, err := run.Record()
	if err != nil {
		return err
	}
	var unanswered error
	for began := time.Now(); ; {
		// Not under the lease's context, which ends when a call is not answered.
		err := lease.Complete(context.Background(), data, keep)
		busy := errors.Is(err, dibs.ErrBusy) && time.Since(began) < h.lease
		switch {
		case errors.Is(err, dibs.ErrStore):
			unanswered = err
		case errors.Is(err, dibs.ErrLost) && unanswered != nil:
			return unanswered // the record may be there, so the lease need not have been lost
		case !busy:
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
}
