//go:build nightly && unix

package servertest

import (
	"os"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestPatroni: the address leads to the new primary after a switchover, and after the old one was
// killed or lost its manager; nothing is left of it.
func TestPatroni(t *testing.T) {
	t.Parallel()
	var folders []string
	t.Run("cluster", func(t *testing.T) {
		c := Patroni(t, nil)
		for _, n := range c.Nodes {
			folders = append(folders, n.folder.path)
		}
		timeline, err := c.TimelineAfter(0)
		testkit.Must(t, err)
		for _, strike := range []func(*PatroniNode) error{
			func(*PatroniNode) error { return c.Switchover() },
			func(n *PatroniNode) error { n.Kill(); n.KillPostgres(); return nil },
			func(n *PatroniNode) error { n.KillPostgres(); return nil },
			func(n *PatroniNode) error { n.Pause(); return nil },
			func(n *PatroniNode) error { n.Link.Cut(); return nil },
		} {
			primary, err := c.Primary()
			testkit.Must(t, err)
			testkit.Must(t, strike(primary))
			if timeline, err = c.TimelineAfter(timeline); err != nil {
				t.Fatal(err)
			}
			primary.Link.Mend()
			primary.Continue()
			if !primary.Running() {
				primary.Restart()
			}
			testkit.Must(t, c.Await())
		}
		c.Etcd.Kill()
		c.Etcd.Restart()
		testkit.Must(t, c.Await())
	})
	for _, f := range folders {
		if _, err := os.Stat(f); err == nil {
			t.Errorf("%s is left", f)
		}
	}
}
