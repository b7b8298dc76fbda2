package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/jobs"
)

// TestAHandlersErrorIsNotTakenForTheMutexs: a job that fails has failed, even if its error has a
// type that has a meaning for the Mutex, for example because the job uses dibs itself.
func TestAHandlersErrorIsNotTakenForTheMutexs(t *testing.T) {
	for name, o := range map[string]jobs.Options{
		"once":  {Once: time.Hour},
		"plain": {},
	} {
		for _, own := range []error{
			&dibs.KeepError{Err: errors.New("its own record")},
			&dibs.HeldError{},
			fmt.Errorf("its own key: %w", dibs.ErrDone),
		} {
			simulateAs(t, fmt.Sprintf("%s %T", name, own), func(t *testing.T, f *fixture) {
				m := f.mutex(&o)
				j := jobs.Job{Kind: "test", ID: "1", Key: "k", Ticket: f.ticket(m, "k")}
				if err := m.Run(t.Context(), j, func(context.Context) error { return own }); !errors.Is(err, own) {
					t.Errorf("the job ended with %v, want %v", err, own)
				}
				if s := m.Stats(); s.Failed != 1 || s.Succeeded != 0 {
					t.Errorf("%+v", s)
				}
				ran := false
				testkit.Must(t, m.Run(t.Context(), j, func(context.Context) error { ran = true; return nil }))
				if !ran {
					t.Error("it did not run again")
				}
			})
		}
	}
}

// TestOnceKeepsKindAndIDApart: two jobs are not taken for one, whatever characters their kinds
// and IDs have.
func TestOnceKeepsKindAndIDApart(t *testing.T) {
	simulate(t, func(t *testing.T, f *fixture) {
		m := f.mutex(&jobs.Options{Once: time.Hour})
		ran := 0
		for _, j := range []jobs.Job{{Kind: "a", ID: "b\x00c"}, {Kind: "a\x00b", ID: "c"}} {
			j.Key = "k"
			testkit.Must(t, m.Run(t.Context(), j, func(context.Context) error { ran++; return nil }))
		}
		if ran != 2 {
			t.Errorf("%d of 2 jobs ran", ran)
		}
	})
}
