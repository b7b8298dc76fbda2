//go:build !linux

package sqlitestore

// filesystemOf tells nothing: nobody has asked this system yet.
func filesystemOf(string) filesystem { return filesystem{} }

// clockFacts tells nothing.
func clockFacts() (source string, own bool) { return "", false }
