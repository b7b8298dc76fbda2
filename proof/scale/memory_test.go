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
	s, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	b := &backend{
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
	t.Run("kept", b.kept)
	runtime.KeepAlive(s)
}
