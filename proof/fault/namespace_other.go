//go:build !linux

package fault

import (
	"errors"
	"time"
)

func timeNamespaces() error {
	return errors.New("only Linux can give a process a clock of its own")
}

func inTimeNamespace(time.Duration) []string { return nil }

func clockOf(int) time.Duration { return 0 }

func sinceBoot() time.Duration { return 0 }
