//go:build !unix

package sqlitestore

func writable(string) error { return nil }
