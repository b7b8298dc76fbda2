package outage

import (
	"errors"

	"github.com/dibs-go/dibs/store"
)

// StoreFault returns the error of a call, or else the first error of one of its n elements that is
// the store's fault: not the fault of the element's key or of its data.
func StoreFault(err error, n int, alone func(i int) error) error {
	for i := 0; i < n && err == nil; i++ {
		if e := alone(i); !about(e, store.ErrLost, store.ErrBusy, store.ErrTooLarge, store.ErrQueueFull) {
			err = e
		}
	}
	return err
}

func about(err error, are ...error) bool {
	for _, is := range are {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}
