package remote_test

import (
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/store/engine"
	"github.com/dibs-go/dibs/store/remote"
)

// TestClockStep: a clock that was set between two looks is found.
func TestClockStep(t *testing.T) {
	start := time.Now()
	for _, test := range []struct {
		step time.Duration
		says string
	}{
		{step: 0}, {step: 300 * time.Millisecond}, {step: time.Minute, says: "1m0s ahead"}, {step: -time.Hour, says: "1h0m0s back"},
	} {
		k, c := &remote.Clock{}, &remote.Checkup{}
		k.Check(c, remote.ClockReading{At: start, Shows: 5e15})
		k.Check(c, remote.ClockReading{At: start.Add(time.Minute), Shows: 5e15 + engine.Micros(time.Minute+test.step)})
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
		c := &remote.Checkup{}
		c.Connections(test.used, test.most)
		if found := c.Findings(); len(found) != test.finds {
			t.Errorf("%d of %d: found %+v, want %d", test.used, test.most, found, test.finds)
		}
	}
}
