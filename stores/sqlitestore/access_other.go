//go:build !unix

package sqlitestore

import "os"

func writable(string) error { return nil }

// links is 1, because this system's package os does not tell.
func links(os.FileInfo) uint64 { return 1 }

const noFollow = 0

func likeOwner(*os.File, os.FileInfo) {}

// readable is false, because the mode does not tell.
func readable(os.FileInfo) bool { return false }
