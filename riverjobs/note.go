package riverjobs

import (
	"encoding/json"
	"fmt"
	"time"
)

// Names in a job's metadata. River merges the uppermost ones when it stores how a job ended.
const (
	noteKey   = "dibs"
	parkedKey = "dibs_parked"
)

// note is what travels with a job.
type note struct {
	Key string `json:"key,omitempty"`
	// Ticket is that of jobs.Mutex.Enqueue, if a place was taken.
	Ticket string `json:"ticket,omitempty"`
	// Due is when the attempt Try was due, where there is a limit to waiting: River has only when
	// the job comes back.
	Due time.Time `json:"due,omitzero"`
	Try int       `json:"try,omitempty"`
}

// metadata is what is read of a job's.
type metadata struct {
	Dibs note `json:"dibs"`
	// Parked says that the job was parked after a worker had it, and has not run since.
	Parked bool `json:"dibs_parked"`
	// Snoozes is how often the job was snoozed before; River counts.
	Snoozes int `json:"snoozes"`
}

func readMetadata(text []byte) (m metadata) {
	_ = json.Unmarshal(text, &m) // what is of another type is not ours, and stays zero
	return m
}

// writeNote returns the metadata with the note, instead of any that a copy of another job's
// metadata may have.
func writeNote(text []byte, n note) ([]byte, error) {
	all := map[string]any{}
	if len(text) > 0 {
		raw := map[string]json.RawMessage{}
		if err := json.Unmarshal(text, &raw); err != nil {
			return nil, fmt.Errorf("riverjobs: a job's metadata is not a JSON object: %w", err)
		}
		for name, value := range raw {
			all[name] = value
		}
	}
	delete(all, parkedKey)
	all[noteKey] = n
	return json.Marshal(all)
}
