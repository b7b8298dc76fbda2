package anystore

import (
	"context"
	"errors"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/memstore"
)

var memoryKind = kind{schemes: []string{"memory"}, form: "memory:", parse: func(url string) (address, error) {
	if url != "memory:" {
		return nil, errors.New("a store in memory has no name: write memory: and nothing else")
	}
	return memoryAddress{}, nil
}}

// memoryAddress is the URL of a store in this process.
type memoryAddress struct{}

func (memoryAddress) String() string    { return "memory:" }
func (memoryAddress) secret() bool      { return false }
func (memoryAddress) find() error       { return nil }
func (a memoryAddress) toRead() address { return a }

func (memoryAddress) check(context.Context) ([]store.Finding, error) {
	return []store.Finding{inMemory}, nil
}

func (a memoryAddress) open(context.Context) (*Store, error) {
	m, err := memstore.New(nil)
	if err != nil {
		return nil, err
	}
	version := func(context.Context) (string, error) { return "memory of this process", nil }
	return &Store{Store: m, address: a, close: m.Close, version: version}, nil
}
