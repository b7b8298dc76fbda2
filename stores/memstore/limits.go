package memstore

import (
	"fmt"

	"github.com/dibs-go/dibs/store"
)

// The limits of Options, as an element's own error.
var (
	errTooManyKeys = fmt.Errorf("memstore: MaxKeys is reached: %w", store.ErrFull)
	errNoBytes     = fmt.Errorf("memstore: MaxBytes is reached: %w", store.ErrFull)

	errTooManyBytes = fmt.Errorf("memstore: a record is larger than MaxBytes: %w", store.ErrTooLarge)
)
