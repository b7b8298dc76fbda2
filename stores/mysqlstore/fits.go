package mysqlstore

import (
	"fmt"
	"slices"

	"github.com/dibs-go/dibs/store"
)

// besides bounds what a script has besides one piece of data, in bytes.
const besides = 64 << 10

// fits returns an error if the server does not take a packet with that data in it.
func (s *Store) fits(data []byte) error {
	n := len(data) + besides
	if n > s.packet/2 {
		for _, c := range data { // these bytes are escaped
			if slices.Contains([]byte("\x00\n\r\x1a'\"\\"), c) {
				n++
			}
		}
	}
	if n > s.packet {
		return fmt.Errorf("%w: %d bytes do not fit into the server's max_allowed_packet of %d; raise it", store.ErrTooLarge, len(data), s.packet)
	}
	return nil
}
