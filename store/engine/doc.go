// Package engine decides what happens to a key, for all stores in Go. It speaks no SQL.
//
//	memstore                     keeps the State of each key between calls (memory.go)
//	sqlitestore                  loads a key into a Batch, changes its State, writes the Changes
//	pgstore, mysqlstore          the same for many keys at once, through package remote
//	casstore                     loads a key into a Batch, changes its State, writes it as a Whole
//
// A store that gives NextFence has one mark of fences for all keys, and only wakes. The others
// push grants.
//
// Each change begins with Advance, which ends what has expired and serves the waiters that this
// frees the key for. Nothing expires by itself in between.
//
// Times are the server's, in microseconds. A store without a server's clock knows two bounds of
// the time: leases, places and records end by the lower one, and last from the upper one. So
// nothing ends early, and what is left is understated rather than overstated. What does not exist
// is zero, in memory, in the tables and in JSON. RowColumns, LeaseColumns and PlaceColumns name the
// columns.
package engine
