package dibs

import (
	"encoding/json"
	"sync"
)

// steps are the results of a lease's steps so far, by name. They are the lease's progress.
type steps struct {
	mu     sync.Mutex
	loaded bool
	done   map[string]json.RawMessage
}

// find returns the result of a step that was done before. progress is that of the lease.
func (s *steps) find(progress []byte, name string) (json.RawMessage, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.loaded {
		s.done = map[string]json.RawMessage{}
		if len(progress) > 0 {
			if err := json.Unmarshal(progress, &s.done); err != nil {
				return nil, false, err
			}
		}
		s.loaded = true
	}
	data, ok := s.done[name]
	return data, ok, nil
}

// keep adds a result. save writes all of them as the lease's progress.
func (s *steps) keep(name string, data json.RawMessage, save func(progress []byte) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[name] = data
	progress, err := json.Marshal(s.done)
	if err == nil {
		err = save(progress)
	}
	if err != nil {
		delete(s.done, name)
	}
	return err
}
