package stores

import (
	"context"
	"errors"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/memstore"
)

// memoryBackend is the store that is part of one process.
var memoryBackend = backend{
	scheme: "memory", form: "memory:",
	check: func(rest string) error {
		if rest != "" {
			return errors.New("a store in memory has no name: write memory: and nothing else")
		}
		return nil
	},
	open: func(_ context.Context, _ string, s *Store) error {
		m, err := memstore.New(nil)
		if err != nil {
			return err
		}
		s.Store, s.close = m, m.Close
		s.version = func(context.Context) (string, error) { return "memory of this process", nil }
		return nil
	},
}

// forMemory is what there is to find about every store in memory.
var forMemory = dibs.Finding{
	Name: "memory", Severity: dibs.SeverityAdvice,
	What: "The store is part of one process: no other one shares it, and nothing in it outlives that.",
	Cure: "Name a file, sqlite:PATH, or a database server with --store or DIBS_STORE.",
}
