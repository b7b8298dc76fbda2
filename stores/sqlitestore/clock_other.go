//go:build !linux && !darwin

package sqlitestore

import "time"

// Other systems have no clock since boot that all processes can read with the standard
// library, so store time follows the wall clock. It never goes backwards, because each
// transaction starts at least at the time of the last one.

func bootID() (string, error) { return "wall clock", nil }

func sinceBoot() int64 { return time.Now().UnixMicro() }
