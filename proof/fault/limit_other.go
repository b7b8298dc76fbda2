//go:build !linux

package fault

import "errors"

func sizeOfDisk(string) (int64, error) {
	return 0, errors.New("the size of a filesystem is looked up on Linux only")
}

func isFull(error) bool { return false }

func canLimit() error { return errors.New("a process's limits can be set from outside on Linux only") }

func limitFiles(int) (func() error, error) { return nil, canLimit() }
