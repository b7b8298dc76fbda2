package dibs_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

func TestCallsThatArriveMeanwhileFormTheNextBatch(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		gate := make(chan struct{})
		s.set(func(verb string) error { <-gate; return nil }, nil)
		var wg sync.WaitGroup
		do := func(key string) {
			wg.Go(func() {
				testkit.Check(t, c.TryDo(t.Context(), key, func(context.Context) error { return nil }))
			})
		}
		do("first")
		synctest.Wait() // alone, it leaves at once
		if claims, _, _ := s.counts(); claims != 1 {
			t.Fatalf("%d calls; want the first one to have left", claims)
		}
		for i := range 1000 {
			do(strconv.Itoa(i))
		}
		synctest.Wait()
		if claims, _, _ := s.counts(); claims != 1 {
			t.Fatalf("%d calls while one is under way", claims)
		}
		s.set(nil, nil)
		close(gate)
		wg.Wait()
		if n := []int{len(s.claims[0]), len(s.claims[1]), len(s.claims[2])}; len(s.claims) != 3 || n[0] != 1 || n[1] != 512 || n[2] != 488 {
			t.Errorf("batches of %v and %d more", n, len(s.claims)-3)
		}
		empty(t, s)
	})
}

func TestElementThatFailsFailsAlone(t *testing.T) {
	withFaults(t, func(t *testing.T, s *faulty, c *dibs.Client) {
		gate := make(chan struct{})
		s.set(func(verb string) error { <-gate; return nil }, nil)
		held, mine := make([]error, 2), make([]error, 20)
		var wg sync.WaitGroup
		for i := range held {
			wg.Go(func() {
				held[i] = c.TryDo(t.Context(), "same", func(context.Context) error { return nil })
			})
		}
		synctest.Wait()
		for i := range mine {
			wg.Go(func() {
				o := &dibs.AcquireOptions{}
				if i%2 == 0 {
					o.Permits = 2 // the key "same" is held with one
				}
				lease, err := c.TryAcquire(t.Context(), fmt.Sprint("own", i/2*2), o)
				if err == nil {
					err = lease.Release()
				}
				mine[i] = err
			})
		}
		synctest.Wait()
		s.set(nil, nil)
		close(gate)
		wg.Wait()
		failed := 0
		for _, err := range mine {
			if err != nil {
				failed++
				if !errors.Is(err, dibs.ErrHeld) {
					t.Error(err)
				}
			}
		}
		if failed > 10 {
			t.Errorf("%d of 20 failed; at most one of each pair can", failed)
		}
	})
}
