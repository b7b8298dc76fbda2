//go:build !linux && !darwin

package sqlitestore

import "time"

// On other systems there is no clock since boot that all processes can read
// without more than the standard library, so store time follows the wall clock;
// it still never goes backwards, because no transaction goes back behind the
// last one's.

func bootID() (string, error) { return "wall clock", nil }

func sinceBoot() int64 { return time.Now().UnixMicro() }
