//go:build unix && !linux

package victim

import "errors"

func mount(string) (unmount func() error, err error) {
	return nil, errors.New("it can be had on Linux only")
}
