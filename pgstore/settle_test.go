package pgstore

import (
	"errors"
	"testing"

	"github.com/dibs-go/dibs"
)

// TestRecordThatIsNeverTaken: what is too large is told from what may be taken later.
func TestRecordThatIsNeverTaken(t *testing.T) {
	s := &Store{}
	s.options.MaxRecord = 10
	for n, want := range map[int]error{10: nil, 11: dibs.ErrTooLarge} {
		if err := s.fits(&dibs.Settlement{Outcome: dibs.Keep, Data: make([]byte, n)}); !errors.Is(err, want) {
			t.Errorf("a record of %d bytes: %v, want %v", n, err, want)
		}
	}
}
