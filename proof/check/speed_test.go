package check_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dibs-go/dibs/proof/check"
	"github.com/dibs-go/dibs/proof/history"
)

func TestHotKeysAreAccepted(t *testing.T) {
	if v := accepted(t, hot(20_000, 3, 16)); v.Waits < 100 || v.Unknown < 50 || v.Grants < 1000 {
		t.Errorf("that was too little to mean anything: %+v", v)
	}
}

func accepted(t testing.TB, events []history.Event) *check.Verdict {
	v := check.History(events, nil)
	if !v.OK() {
		var text bytes.Buffer
		v.WriteText(&text)
		t.Fatal(text.String())
	}
	return v
}

// hot returns about n calls of a correct mutex that many users want at once, on each of some
// keys. Some settlements are not answered of, and their leases run out.
func hot(n, keys, users int) []history.Event {
	r := rand.New(rand.NewPCG(1, 2))
	const ttl = time.Second
	var events []history.Event
	token := 0
	for k := range keys {
		now, fence := time.Duration(1+r.IntN(1e9)), uint64(k*1_000_000)
		window := func() (call, ret time.Duration) {
			return now - time.Duration(1+r.IntN(2e5)), now + time.Duration(1+r.IntN(2e5))
		}
		key := fmt.Sprint("key", k)
		ask := func(token, process int) history.Event {
			call, ret := window()
			return history.Event{
				Kind: history.Claim, Key: key, Token: fmt.Sprintf("%032x", token), Process: process, Mode: "queue",
				TTL: ttl, PlaceTTL: 3 * ttl / 2, Permits: 1, Left: 1, Call: call, Return: ret, State: "held", Queued: true,
			}
		}
		type waiter struct{ token, process int }
		newcomer := func() waiter {
			token++
			return waiter{token, token%users + 1}
		}
		holder := newcomer()
		var queue []waiter
		for len(events) < n*(k+1)/keys {
			fence++
			e := ask(holder.token, holder.process)
			e.State, e.Queued, e.Fence, e.Attempt = "granted", false, fence, 1
			events = append(events, e)
			now += time.Millisecond
			for len(queue) < users-1 { // every user that does not wait comes again
				w := newcomer()
				queue = append(queue, w)
				now += time.Duration(r.IntN(1e6))
				events = append(events, ask(w.token, w.process))
			}
			for _, w := range queue[r.IntN(len(queue)):] { // some ask again
				now += time.Duration(r.IntN(1e5))
				events = append(events, ask(w.token, w.process))
			}
			now += time.Duration(1e6 + r.IntN(1e7))
			call, ret := window()
			events = append(events, history.Event{Kind: history.Renew, Key: key, Token: e.Token, Process: e.Process, TTL: ttl, Call: call, Return: ret})
			now += time.Duration(1e6 + r.IntN(1e7))
			call, ret = window()
			s := history.Event{Kind: history.Settle, Key: key, Token: e.Token, Process: e.Process, Outcome: "release", Call: call, Return: ret}
			if r.IntN(20) == 0 {
				s.Error = history.Unknown
				for range 4 {
					now += ttl/4 - 4*time.Millisecond
					for _, w := range queue { // no waiter loses its place
						events = append(events, ask(w.token, w.process))
					}
				}
				now += 20 * time.Millisecond
			}
			events = append(events, s)
			now += time.Millisecond
			holder, queue = queue[0], queue[1:]
		}
	}
	history.Sort(events)
	return events
}
