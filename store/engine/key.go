package engine

import (
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/backend"
)

// KeyOf returns the form of a key in the tables; backend.ParseKey reads it.
func KeyOf(k store.Key) string { return string(backend.AppendKey(make([]byte, 0, 64), k)) }
