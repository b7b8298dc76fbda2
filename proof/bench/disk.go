package main

import (
	"fmt"
	"os"
	"slices"
	"time"
)

// disk says what an fsync of a page costs where the servers of this program keep their data.
func disk() string {
	cost, err := syncCost(os.TempDir())
	if err != nil {
		return fmt.Sprintf("An fsync fails: %v.", err)
	}
	return fmt.Sprintf("An fsync of a page takes %.2f ms.", float64(cost.Microseconds())/1000)
}

// syncCost returns the median time of writing a page of a file that has its size
// already and waiting for it, which is what a database does with its log.
func syncCost(dir string) (time.Duration, error) {
	const page, pages = 8192, 256
	f, err := os.CreateTemp(dir, "dibs-bench-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	buf := make([]byte, page)
	for range pages {
		if _, err := f.Write(buf); err != nil {
			return 0, err
		}
	}
	if err := f.Sync(); err != nil {
		return 0, err
	}
	took := make([]time.Duration, pages)
	for i := range took {
		if _, err := f.WriteAt(buf, int64(i)*page); err != nil {
			return 0, err
		}
		start := time.Now()
		if err := f.Sync(); err != nil {
			return 0, err
		}
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	return took[pages/2], nil
}
