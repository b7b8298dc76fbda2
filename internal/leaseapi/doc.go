// Package leaseapi has the messages of the lease API: the store contract as JSON. The server
// (dibs serve) and the Go store over it (package httpstore) read and write them here, so that
// there is one reading of each field.
//
// An object is read strictly: a field that is unknown, that is written in another case or
// that comes twice is an error, which names it. So is text that is not UTF-8, because JSON
// decoders replace it in silence, and two keys would become one.
package leaseapi

import (
	_ "embed"
	"time"
)

// Description is the OpenAPI document of the API.
//
//go:embed openapi.json
var Description []byte

// Version is the first segment of all paths.
const Version = "/v1"

// Stopping is the problem of a server that ends. It did nothing, so another server may be asked.
const Stopping = "stopping"

// Bounds of one call.
const (
	// MaxElements is the most claims, renewals or settlements of one call.
	MaxElements = 1024
	// MaxWait is the longest wait of a call.
	MaxWait = time.Minute
)

// The defaults of what a claim leaves out. TTL is the library's.
const (
	DefaultTTL = 30 * time.Second
	// DefaultPlaceTTL is longer than the library's, because a client that lost its server needs
	// time to find another one.
	DefaultPlaceTTL = 10 * time.Second
	// DefaultRetention is that of a settlement that keeps a record.
	DefaultRetention = 24 * time.Hour
)
