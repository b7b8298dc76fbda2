package memstore

import (
	"fmt"

	"github.com/dibs-go/dibs"
)

// The limits of Options, as an element's own error.
var (
	errTooManyKeys = fmt.Errorf("memstore: MaxKeys is reached: %w", dibs.ErrFull)
	errNoBytes     = fmt.Errorf("memstore: MaxBytes is reached: %w", dibs.ErrFull)

	errTooManyBytes = fmt.Errorf("memstore: a record is larger than MaxBytes: %w", dibs.ErrTooLarge)
)
