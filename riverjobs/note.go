package riverjobs

import (
	"encoding/json"
	"fmt"
	"time"
)

// noteKey is the name in a job's metadata under which the note is.
const noteKey = "dibs"

// note is what travels with a job, in its metadata.
type note struct {
	Key string `json:"key,omitempty"`
	// Ticket is that of jobs.Mutex.Enqueue, if a place was taken.
	Ticket string `json:"ticket,omitempty"`
	// Due is when the attempt Try was due, where there is a limit to waiting: River
	// has only when the job comes back.
	Due time.Time `json:"due,omitzero"`
	Try int       `json:"try,omitempty"`
}

// readNote returns the note in a job's metadata; a zero one if there is none that can
// be read.
func readNote(metadata []byte) note {
	var m struct {
		Dibs note `json:"dibs"`
	}
	if json.Unmarshal(metadata, &m) != nil {
		return note{}
	}
	return m.Dibs
}

// writeNote returns the metadata with the note, or without one if it is zero, instead
// of any that a copy of another job's metadata may have.
func writeNote(metadata []byte, n note) ([]byte, error) {
	all := map[string]json.RawMessage{}
	if len(metadata) > 0 {
		if err := json.Unmarshal(metadata, &all); err != nil {
			return nil, fmt.Errorf("riverjobs: a job's metadata is not a JSON object: %w", err)
		}
	}
	delete(all, noteKey)
	if n != (note{}) {
		text, err := json.Marshal(n)
		if err != nil {
			return nil, err // it cannot be
		}
		all[noteKey] = text
	}
	return json.Marshal(all)
}
