package storekit_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/store/storekit"
)

// TestClockStep: a clock that was set between two looks is found.
func TestClockStep(t *testing.T) {
	start := time.Now()
	for _, test := range []struct {
		since, step time.Duration
		says        string
	}{
		{since: time.Minute}, {since: time.Minute, step: 300 * time.Millisecond},
		{since: 24 * time.Hour, step: 20 * time.Second}, // as oscillators do
		{since: time.Minute, step: time.Minute, says: "1m0s ahead"}, {since: 24 * time.Hour, step: -time.Hour, says: "1h0m0s back"},
	} {
		k, c := &storekit.Clock{}, &storekit.Checkup{}
		k.Check(c, storekit.ClockReading{At: start, Shows: 5e15})
		k.Check(c, storekit.ClockReading{At: start.Add(test.since), Shows: 5e15 + (test.since + test.step).Microseconds()})
		found := c.Findings()
		switch {
		case test.says == "" && len(found) > 0, test.says != "" && len(found) != 1:
			t.Errorf("a step of %v: found %+v", test.step, found)
		case test.says != "" && !strings.Contains(found[0].What, test.says):
			t.Errorf("a step of %v: %q does not say %q", test.step, found[0].What, test.says)
		}
	}
}

// TestConnections: there is advice if another store may not get its connections.
func TestConnections(t *testing.T) {
	for _, test := range []struct {
		used, most int64
		finds      int
	}{{11, 20, 0}, {12, 20, 1}, {900, 1000, 0}, {901, 1000, 1}} {
		c := &storekit.Checkup{}
		c.Connections(test.used, test.most)
		if found := c.Findings(); len(found) != test.finds {
			t.Errorf("%d of %d: found %+v, want %d", test.used, test.most, found, test.finds)
		}
	}
}

// TestFence: a fence that is ahead of the clock is found, however far ahead it is.
func TestFence(t *testing.T) {
	for fence, says := range map[int64]string{5e15: "", 5e15 + 3600e6: "1h0m0s ahead", math.MaxInt64: "ahead"} {
		c := &storekit.Checkup{}
		c.Fence(fence, 5e15)
		if found := c.Findings(); len(found) > 0 != (says != "") || says != "" && !strings.Contains(found[0].What, says) {
			t.Errorf("the fence %d: found %+v, want %q", fence, found, says)
		}
	}
}
