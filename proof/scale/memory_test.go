package main

import (
	"runtime"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/memstore"
)

// TestMemory checks how much memory a process needs whose store is in it.
func TestMemory(t *testing.T) {
	compare(t, newMemory, []check{{"kept", (*backend).kept}})
}

// newMemory returns the store in the memory of the process beside its model.
func newMemory(t *testing.T) *backend {
	s, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return &backend{
		model: Memory{},
		open:  func(*testing.T, time.Duration) dibs.Store { return s },
		space: func(*testing.T) float64 {
			runtime.GC()
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return float64(m.HeapAlloc)
		},
		grain: 64 << 10,
	}
}
