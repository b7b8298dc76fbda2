package main

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/servertest"
	"github.com/dibs-go/dibs/redisstore"
)

// newRedis returns a Redis beside its model. What it counts is in INFO, which is longer
// whenever it has counted something for the first time.
func newRedis(t *testing.T) *backend {
	server := servertest.Redis(t, nil)
	var told float64 // how long its INFO was so far
	info := func(t *testing.T) map[string]string {
		t.Helper()
		text, ok := server.Must("INFO", "everything").(string)
		if !ok {
			t.Fatal("INFO has no text")
		}
		told += float64(len(text))
		fields := map[string]string{}
		for line := range strings.Lines(text) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				fields[name] = value
			}
		}
		return fields
	}
	return &backend{
		model: Redis{},
		open: func(t *testing.T, _ time.Duration) dibs.Store {
			t.Helper()
			s, err := redisstore.Open(t.Context(), server.URL(), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			return s
		},
		used: func(t *testing.T) counts {
			t.Helper()
			before := told
			fields := info(t)
			c := counts{calls: factor, bytes: factor, notices: factor}
			for name, value := range fields {
				verb, ok := strings.CutPrefix(name, "cmdstat_")
				if !ok {
					continue
				}
				n, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
				calls := number(t, n)
				c.work += calls
				switch verb {
				case "evalsha", "eval", "ping":
					c.Calls += calls
				case "publish":
					c.Notices += calls
					c.Calls -= calls // the script that publishes has asked for whom
				case "pubsub|numsub":
					c.Calls += calls
				}
			}
			c.In, c.Out = number(t, fields["total_net_input_bytes"]), number(t, fields["total_net_output_bytes"])-before
			return c
		},
		space: func(t *testing.T) float64 {
			t.Helper()
			server.Must("MEMORY", "PURGE")
			return number(t, info(t)["used_memory_dataset"])
		},
		grain:       128 << 10, // tables that double, buffers of clients
		connections: func(t *testing.T) int { return int(number(t, info(t)["connected_clients"])) },
	}
}

func number(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
