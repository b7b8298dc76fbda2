// Package store is the contract between a dibs.Client and what keeps its leases. Who writes a
// store implements Store, and whichever of the optional interfaces the backend can do; package
// storetest checks it, and docs/design/writing-a-store.md shows how to begin. Who uses a store needs
// package dibs only.
package store
