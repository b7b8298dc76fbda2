// Package engine is what may happen to a key, for stores that keep keys in rows of tables
// on a server. It speaks no SQL.
//
// A store locks the rows of some keys, in their order, and loads what belongs to them into
// a Batch: each key's row, leases that have rows of their own, what was saved, and the
// front of the queue. Something is done with each State in memory: a claim, a settlement,
// what an operator forces, or only that time passes. Then the store writes the Changes,
// commits, and tells the Turns. So it takes two round trips, however many keys there are
// and whatever happens to them.
//
//	lock, load ──▶ Claim, Settle, … ──▶ Changes ──▶ commit ──▶ Turns
//	   ▲                  │
//	   └──── Short ───────┘  more of a long queue is needed
//
// Whatever is done begins with Advance: what is over is seen as over, in the order in
// which it ended, and what that frees is served. Nothing happens by itself in between.
//
// What most calls are about is plain: a key with one permit, of which nothing else is
// known. Its row is not Busy, and stores have statements for it that take one round trip
// and agree with what is decided here.
//
// Times are the server's, in microseconds. What is not there is zero, and so it is in the
// tables. RowColumns, LeaseColumns and PlaceColumns name the fields that are kept.
package engine
