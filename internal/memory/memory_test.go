package memory_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs/internal/memory"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestAccounts: what is taken of one budget, or of several at once, is given back.
func TestAccounts(t *testing.T) {
	all, own := memory.New(100), memory.New(60)
	a, b := memory.Open(own, all), memory.Open(all)
	used := func(wantOwn, wantAll int64) {
		t.Helper()
		if own.Used() != wantOwn || all.Used() != wantAll {
			t.Errorf("%d and %d are taken; want %d and %d", own.Used(), all.Used(), wantOwn, wantAll)
		}
	}
	free := memory.Open()
	if a.Most() != 60 || b.Most() != 100 || free.Most() < 1<<62 {
		t.Errorf("the bounds are %d, %d and %d", a.Most(), b.Most(), free.Most())
	}
	if a.Try(61) || !a.Try(60) || a.Try(1) {
		t.Error("an account has another bound than its budget")
	}
	used(60, 60)
	if b.Try(41) || !b.Try(40) {
		t.Error("what one account takes is not taken from the others")
	}
	b.Owe(7)
	a.Keep(80)
	used(60, 107)
	a.Keep(10)
	used(10, 57)
	a.Close()
	a.Close()
	b.Close()
	used(0, 0)
	if !a.Try(0) || !free.Try(1<<40) {
		t.Error("an account without a bound is bounded")
	}
}

// TestWaiting: accounts get room in the order in which they ask, and a later one does not pass.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New(100)
		first, over := memory.Open(b), memory.Open(b)
		if !first.Try(90) || over.Wait(t.Context(), 20) != nil { // may exceed the bound
			t.Fatal("one account may not exceed the bound")
		}
		var order []int
		accounts := []*memory.Account{&over}
		cause := errors.New("the cause")
		ctx, cancel := context.WithCancelCause(t.Context())
		for i, n := range []int64{50, 30, 5} {
			a := memory.Open(b)
			accounts = append(accounts, &a)
			go func() {
				ctx := ctx
				if i > 0 {
					ctx = t.Context()
				}
				if err := a.Wait(ctx, n); err == nil {
					order = append(order, i)
				} else if err != cause || a.Held() != 0 {
					t.Errorf("account %d has %d and the error %v", i, a.Held(), err)
				}
			}()
			synctest.Wait()
		}
		if late := memory.Open(b); late.Try(1) || len(order) > 0 {
			t.Error("an account passed others that wait")
		}
		first.Keep(75) // 95 are taken: room for the last, and not for the first
		synctest.Wait()
		if len(order) > 0 {
			t.Errorf("%v passed", order)
		}
		cancel(cause)
		synctest.Wait()
		first.Keep(48) // for the second
		synctest.Wait()
		if len(order) != 1 || order[0] != 1 {
			t.Errorf("the order is %v", order)
		}
		first.Close()
		synctest.Wait()
		if len(order) != 2 || order[1] != 2 || b.Used() != 55 {
			t.Errorf("the order is %v, and %d are taken", order, b.Used())
		}
		for _, a := range accounts {
			a.Close()
		}
		if b.Used() != 0 {
			t.Errorf("%d are left", b.Used())
		}
	})
}

// TestAnswersAllEnd: accounts that grow while they hold a part do not wait for one another, whatever
// they need, and no more than one of them exceeds the bound.
func TestAnswersAllEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const accounts, parts, part, most = 50, 20, 10, 500
		own, b := memory.New(most/2), memory.New(most)
		var all sync.WaitGroup
		for i := range accounts {
			all.Go(func() {
				a := memory.Open(b)
				if i%2 == 0 {
					a = memory.Open(own, b)
				}
				for range parts {
					time.Sleep(rand.N(time.Second))
					testkit.Check(t, a.Wait(t.Context(), part))
					if used := b.Used(); used > most+parts*part+accounts*part { // one answer, and what is kept of others
						t.Errorf("%d bytes are taken of %d", used, most)
					}
				}
				if i%3 == 0 { // it is stored, and a slow client takes it
					a.Keep(part)
					time.Sleep(time.Minute)
				}
				a.Close()
			})
		}
		all.Wait()
		if own.Used() != 0 || b.Used() != 0 {
			t.Errorf("%d and %d are left", own.Used(), b.Used())
		}
	})
}

// TestResize: a bound that rises gives room to those that wait, and one that falls takes nothing away.
func TestResize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.NewShares(100)
		first, second, third := memory.Open(s.Memory), memory.Open(s.Memory), memory.Open(s.Memory)
		if !first.Try(100) || second.Wait(t.Context(), 1) != nil {
			t.Fatal("there is no room")
		}
		done := make(chan error, 1)
		go func() { done <- third.Wait(t.Context(), 50) }()
		synctest.Wait()
		if len(done) > 0 {
			t.Error("there is more room than the bound")
		}
		s.Resize(200)
		if err := <-done; err != nil || s.Memory.Used() != 151 || s.Files.Most() != 800 || s.Records.Most() != 50 {
			t.Errorf("%v, and %d bytes are taken", err, s.Memory.Used())
		}
		s.Resize(10)
		if first.Try(1) || s.Memory.Used() != 151 {
			t.Errorf("%d bytes are taken", s.Memory.Used())
		}
	})
}

// TestLimit: the default follows GOMEMLIMIT.
func TestLimit(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	debug.SetMemoryLimit(1 << 30)
	if n := memory.Limit(); n != 512<<20 {
		t.Errorf("under 1 GiB it is %d", n)
	}
	debug.SetMemoryLimit(1<<63 - 1)
	if n := memory.Limit(); n != memory.Fallback {
		t.Errorf("without GOMEMLIMIT it is %d", n)
	}
}

// TestExpected: a record is expected to be as long as the longest one lately.
func TestExpected(t *testing.T) {
	s := memory.NewShares(1 << 20)
	s.Read(1000)
	s.Read(1 << 20)
	s.Read(10)
	if n := s.Expected(); n < 1<<19 || n > 1<<20 {
		t.Errorf("after one short record it is %d", n)
	}
	for range 10_000 {
		s.Read(10)
	}
	if n := s.Expected(); n != 10 {
		t.Errorf("after many short records it is %d", n)
	}
}
