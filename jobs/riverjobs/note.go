package riverjobs

import (
	"encoding/json"
	"fmt"
	"time"
)

// Names in a job's metadata. River merges top-level names when it stores a job's result.
const (
	noteKey    = "dibs"
	parkedKey  = "dibs_parked"
	snoozesKey = "snoozes" // River's
)

// note is the part of a job's metadata that belongs to this package.
type note struct {
	Key string `json:"key,omitempty"`
	// Ticket is the text of jobs.Mutex.Enqueue, if a place was reserved.
	Ticket string `json:"ticket,omitempty"`
	// Due is when the try was due, if there is a Limit, because a snooze
	// overwrites River's own time.
	Due time.Time `json:"due,omitzero"`
	Try int       `json:"try,omitempty"`
}

// metadata is the part of a job's metadata that this package reads.
type metadata struct {
	Dibs note
	// Parked says that a worker parked the job, and it has not run since.
	Parked bool
	// Snoozes is River's count of snoozes.
	Snoozes int
}

func readMetadata(text []byte) (m metadata) {
	var raw map[string]json.RawMessage // because a field of a struct also has names in other cases
	_ = json.Unmarshal(text, &raw)
	for name, value := range map[string]any{noteKey: &m.Dibs, parkedKey: &m.Parked, snoozesKey: &m.Snoozes} {
		if text := raw[name]; text != nil {
			_ = json.Unmarshal(text, value) // values of other types are foreign and stay zero
		}
	}
	return m
}

// writeNote returns the metadata with this note. It replaces a note copied from another
// job.
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
