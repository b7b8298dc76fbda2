//go:build !linux

package sqlitestore

// filesystemOf knows nothing on this system.
func filesystemOf(string) filesystem { return filesystem{} }

// clockFacts knows nothing on this system.
func clockFacts() (source string, own bool) { return "", false }
