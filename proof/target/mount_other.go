//go:build unix && !linux

package target

import "errors"

func mount(string) (unmount func() error, err error) {
	return nil, errors.New("it can be had on Linux only")
}
