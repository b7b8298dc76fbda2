package idempotency

import "io"

// An insideReader is a body that is looked into, with what the functions that do so may take of
// Options.MaxBodyMemory.
type insideReader struct {
	*io.SectionReader
	room *reservation
	body int64 // what the body itself has taken
}

// Take implements content.Taker.
func (r *insideReader) Take(n int64) error {
	switch {
	case r.room.grow(n):
		return nil
	case r.body+r.room.n+n > r.room.of.most:
		return errTooLarge // whatever else is given back
	}
	return errMaxBodyMemory
}
