package sqlitestore

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, &storetest.Harness{
		New: func(t testing.TB) *storetest.Backend {
			file := filepath.Join(t.TempDir(), "dibs.db")
			var opened []*Store
			openWith := func(c clock) dibs.Store {
				s, err := open(file, nil, c)
				if err != nil {
					t.Fatalf("open: %v", err)
				}
				opened = append(opened, s)
				t.Cleanup(func() {
					if err := s.Close(); err != nil {
						t.Errorf("close: %v", err)
					}
				})
				return s
			}
			closeAll := func() {
				for _, s := range opened {
					if err := s.Close(); err != nil {
						t.Errorf("close: %v", err)
					}
				}
				opened = nil
			}
			return &storetest.Backend{
				Open: func() dibs.Store { return openWith(hostClock) },
				OpenSkewed: func(d time.Duration) dibs.Store {
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
		Lacks: map[storetest.Feature]string{
			storetest.GrantNotifier: "the file's readers are only told that something has changed, and asking reads it anyway",
		},
	})
}
