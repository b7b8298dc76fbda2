package page

import (
	"context"
	"errors"
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
		for _, kind := range []idempotency.EventKind{idempotency.EventRan, idempotency.EventReplayed, idempotency.EventConflict} {
			traffic.Request(t.Context(), idempotency.Event{Kind: kind})
		}
		traffic.StoreCall(dibs.StoreCall{})
		traffic.StoreCall(dibs.StoreCall{Err: context.Canceled}) // its caller went away
		traffic.StoreCall(dibs.StoreCall{Err: errors.New("refused")})
		time.Sleep(slot)
		traffic.Add(Requests, 5)
		all := traffic.read(time.Now())
		for c, want := range [counts][2]int64{Requests: {3, 5}, Replays: {1, 0}, Conflicts: {1, 0}, StoreErrors: {1, 0}} {
			if got := [2]int64(all[c][slots-2:]); got != want {
				t.Errorf("count %d has %v in the last slots; want %v", c, got, want)
			}
		}
		time.Sleep((slots - 1) * slot)
		if all := traffic.read(time.Now()); all[Requests][0] != 5 || all[Replays] != [slots]int64{} {
			t.Errorf("five minutes later it has %v", all)
		}
		time.Sleep(time.Hour)
		if all := traffic.read(time.Now()); all != [counts][slots]int64{} {
			t.Errorf("an hour later it has %v", all)
		}
	})
}
