//go:build !unix

package sqlitestore

import (
	"errors"
	"os"
)

// hasFileLocks is false where the system's file locks have no queue to stand
// in; SQLite's own lock is all there is then.
const hasFileLocks = false

var errWouldWait = errors.New("the file is locked")

func lockFile(*os.File, bool) error { return nil }

func unlockFile(*os.File) {}
