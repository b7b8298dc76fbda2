//go:build !unix

package sqlitestore

import (
	"errors"
	"os"
)

// hasFileLocks is false because this system's file locks have no queue. SQLite's lock
// remains.
const hasFileLocks = false

var errWouldWait = errors.New("the file is locked")

func lockFile(*os.File, bool) error { return nil }

func unlockFile(*os.File) {}
