package jobs

import (
	"errors"
	"strconv"
	"strings"

	"github.com/dibs-go/dibs"
)

// ticket is the parsed text of a Ticket: a place, and with Replace and CancelRunning the number of the
// enqueue.
type ticket struct {
	place  dibs.Place
	number uint64
}

// String formats the ticket in printable ASCII without spaces.
func (t ticket) String() string {
	text, err := t.place.MarshalText()
	if err != nil {
		panic(err) // every place has a text
	}
	if t.number == 0 {
		return string(text)
	}
	return string(text) + "~" + strconv.FormatUint(t.number, 36)
}

// parseTicket parses the result of String.
func parseTicket(s string) (t ticket, err error) {
	text, number, ok := strings.Cut(s, "~")
	if ok {
		t.number, err = strconv.ParseUint(number, 36, 64)
		if err != nil || t.number == 0 || strconv.FormatUint(t.number, 36) != number {
			return ticket{}, errors.New("jobs: not a ticket: its number is invalid")
		}
	}
	if err := t.place.UnmarshalText([]byte(text)); err != nil {
		return ticket{}, err
	}
	return t, nil
}
