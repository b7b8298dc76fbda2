package sqlitestore

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storetest"
)

func TestConformance(t *testing.T) {
	conform(t, Options{}, func(_ testing.TB, s *Store) store.Store { return s })
}

// conform checks all properties on files of their own, with the stores as something
// else.
func conform(t *testing.T, o Options, as func(testing.TB, *Store) store.Store) {
	t.Parallel() // it mostly waits
	storetest.Run(t, &storetest.Harness{
		New: func(t testing.TB, _ time.Duration) *storetest.Subject {
			o := o
			o.PruneEvery = -1 // pruning would use the connection during the set-up below
			file := filepath.Join(t.TempDir(), "dibs.db")
			var opened []*Store
			openWith := func(c clock) store.Store {
				s, err := open(file, &o, c)
				if err != nil {
					t.Fatalf("open: %v", err)
				}
				if err := s.conn.Exec("PRAGMA synchronous = OFF"); err != nil { // no machine fails here
					t.Fatal(err)
				}
				opened = append(opened, s)
				t.Cleanup(func() {
					if err := s.Close(); err != nil {
						t.Errorf("close: %v", err)
					}
				})
				return as(t, s)
			}
			closeAll := func() {
				for _, s := range opened {
					if err := s.Close(); err != nil {
						t.Errorf("close: %v", err)
					}
				}
				opened = nil
			}
			return &storetest.Subject{
				Open: func() store.Store { return openWith(hostClock) },
				OpenSkewed: func(d time.Duration) store.Store {
					c := hostClock
					c.wall = func() int64 { return time.Now().Add(d).UnixMicro() }
					return openWith(c)
				},
				Restart: closeAll,
				Wipe: func() {
					closeAll()
					for _, suffix := range []string{"", "-wal", "-shm"} {
						if err := os.Remove(file + suffix); err != nil && !os.IsNotExist(err) {
							t.Fatal(err)
						}
					}
				},
			}
		},
	})
}
