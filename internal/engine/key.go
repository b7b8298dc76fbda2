package engine

import (
	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
)

// KeyOf returns the form in which a key is kept; backend.ParseKey reads it.
func KeyOf(k dibs.Key) string { return string(backend.AppendKey(make([]byte, 0, 64), k)) }
