//go:build !linux

package sqlitestore

// filesystemOf knows nothing on this system.
func filesystemOf(string) filesystem { return filesystem{} }

// isMountPoint knows nothing on this system.
func isMountPoint(string) bool { return false }

// clockFacts knows nothing on this system.
func clockFacts() (source string, own bool) { return "", false }
