package page

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
)

// TestTraffic: what happened counts for five minutes, in the slot in which it happened.
func TestTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var traffic Traffic
		for _, kind := range []idempotency.EventKind{idempotency.EventRan, idempotency.EventReplayed, idempotency.EventConflict, idempotency.EventMismatch, idempotency.EventUnknown} {
			traffic.Request(t.Context(), idempotency.Event{Kind: kind})
		}
		traffic.StoreCall(dibs.StoreCall{})
		traffic.StoreCall(dibs.StoreCall{Err: context.Canceled}) // its caller went away
		traffic.StoreCall(dibs.StoreCall{Err: errors.New("refused")})
		time.Sleep(slot)
		traffic.Add("shop", Requests, 5)
		all := traffic.read(time.Now(), nil)
		for c, want := range [counts][2]int64{Requests: {5, 5}, Replays: {1, 0}, Conflicts: {1, 0}, Refusals: {2, 0}, StoreErrors: {1, 0}} {
			if got := [2]int64(all[c][slots-2:]); got != want {
				t.Errorf("count %d has %v in the last slots; want %v", c, got, want)
			}
		}
		time.Sleep((slots - 1) * slot)
		if all := traffic.read(time.Now(), nil); all[Requests][0] != 5 || all[Replays] != [slots]int64{} {
			t.Errorf("five minutes later it has %v", all)
		}
		time.Sleep(time.Hour)
		if all := traffic.read(time.Now(), nil); all != (happened{}) || len(traffic.of) > 0 {
			t.Errorf("an hour later it has %v", all)
		}
	})
}

// TestTrafficOfANamespace: it has what happened there and nothing of other namespaces, but for errors of
// the store.
func TestTrafficOfANamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var traffic Traffic
		traffic.Add("shop", Requests, 5)
		traffic.Add("bank", Requests, 7)
		traffic.Add("bank", Conflicts, 2)
		traffic.StoreCall(dibs.StoreCall{Err: errors.New("refused")})
		for namespace, want := range map[string][counts]int64{"shop": {Requests: 5, StoreErrors: 1}, "bank": {Requests: 7, Conflicts: 2, StoreErrors: 1}, "other": {StoreErrors: 1}} {
			var got [counts]int64
			for c, each := range traffic.read(time.Now(), &namespace) {
				got[c] = each[slots-1]
			}
			if got != want {
				t.Errorf("of %s it has %v; want %v", namespace, got, want)
			}
		}
		for i := range 2 * maxNamespaces {
			traffic.Add(strconv.Itoa(i), Requests, 1)
		}
		if all := traffic.read(time.Now(), nil); len(traffic.of) > maxNamespaces || all[Requests][slots-1] != 12+2*maxNamespaces {
			t.Errorf("it counts %d namespaces, and %d in all", len(traffic.of), all[Requests][slots-1])
		}
	})
}
