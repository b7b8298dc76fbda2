package idempotency

import (
	"io"

	"github.com/dibs-go/dibs/internal/memory"
)

// An insideReader is a body that is looked into, with what the functions that do so may take of
// Options.MaxBodyMemory.
type insideReader struct {
	*io.SectionReader
	room *memory.Account
	body int64 // what the body itself has taken
}

// Take implements content.Taker.
func (r *insideReader) Take(n int64) error {
	switch {
	case r.room.Try(n):
		return nil
	case r.body+r.room.Held()+n > r.room.Most():
		return errTooLarge // whatever else is given back
	}
	return errMaxBodyMemory
}
