package jobs

import (
	"errors"
	"strconv"
	"strings"

	"github.com/dibs-go/dibs"
)

// ticket is what travels with a job: its place, and the number of its enqueuing
// where it matters which is the newest.
type ticket struct {
	place  dibs.Place
	number uint64
}

// String writes the ticket in printable ASCII without spaces.
func (t ticket) String() string {
	text, err := t.place.MarshalText()
	if err != nil {
		panic(err) // there is no place that cannot be written
	}
	if t.number == 0 {
		return string(text)
	}
	return string(text) + "~" + strconv.FormatUint(t.number, 36)
}

// parseTicket reads what String wrote.
func parseTicket(s string) (t ticket, err error) {
	text, number, ok := strings.Cut(s, "~")
	if ok {
		t.number, err = strconv.ParseUint(number, 36, 64)
		if err != nil || t.number == 0 || strconv.FormatUint(t.number, 36) != number {
			return ticket{}, errors.New("jobs: not a ticket: its number cannot be read")
		}
	}
	if err := t.place.UnmarshalText([]byte(text)); err != nil {
		return ticket{}, err
	}
	return t, nil
}
