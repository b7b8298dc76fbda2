//go:build unix

package servertest

import "github.com/dibs-go/dibs/internal/prove/wire"

// NewWire opens a wire to the server at target. It ends with its owner.
func NewWire(owner Owner, target string) *wire.Wire {
	owner.Helper()
	w, err := wire.Open(target)
	if err != nil {
		owner.Fatalf("%v", err)
	}
	owner.Cleanup(func() { _ = w.Close() })
	return w
}
