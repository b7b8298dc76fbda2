package idempotency

import "sync"

// scratch is the memory that a guarded request borrows.
type scratch struct {
	request []byte // its body
	answer  []byte // the answer's body
	message []byte // the answer as a message
	record  []byte // and deflated; also whatever is hashed
	header  fieldList
	trailer fieldList
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// keptScratch bounds the memory that is kept for the next request.
const keptScratch = 256 << 10

func (s *scratch) free() {
	s.header.reset()
	s.trailer.reset()
	for _, b := range []*[]byte{&s.request, &s.answer, &s.message, &s.record} {
		if cap(*b) > keptScratch {
			*b = nil
		}
		*b = (*b)[:0]
	}
	scratches.Put(s)
}
