package engine

import (
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

// KeyOf returns the form of a key in the tables; storekit.ParseKey reads it.
func KeyOf(k store.Key) string { return string(storekit.AppendKey(make([]byte, 0, 64), k)) }
