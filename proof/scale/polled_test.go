package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/pgstore"
)

// TestPolling checks what waiting costs PostgreSQL where nobody can listen, as behind a
// transaction pooler.
func TestPolling(t *testing.T) {
	t.Parallel()
	start := func(t *testing.T) *backend {
		_, b := startPostgres(t, &pgstore.Options{Wake: pgstore.WakePoll})
		return b
	}
	compare(t, start, []check{
		{"1", func(b *backend, t *testing.T) { b.polling(t, 1) }},
		{"8", func(b *backend, t *testing.T) { b.polling(t, 8) }},
	})
}

// polling checks what so many cost who wait.
func (b *backend) polling(t *testing.T, waiters int) {
	t.Helper()
	c := client(t, b.open(t, never), &dibs.Options{Label: "scale"})
	crowd := gather(t, b.open(t, never), []*dibs.Client{c}, keyName("hot", waiters), waiters)
	pass(time.Second) // until looks are as rare as they become
	model := PolledPostgres{}
	asks := model.Ask(shape, waiters).Times(Asks(waiters))
	var took time.Duration
	got := b.measure(t, func() { took = pass(1500 * time.Millisecond) })
	want := asks.Plus(model.Polls(shape, waiters, 0)).Times(took.Seconds())
	b.between(t, fmt.Sprintf("%d wait", waiters), got, want.Times(1.0/busy), want, asks.Plus(Cost{Log: 2000}))
	crowd.goOn(t)
}
