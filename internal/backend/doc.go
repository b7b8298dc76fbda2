// Package backend has what all stores need alike: who listens for waiters, how a key is
// written as bytes, what an entry is called, and what an error of a server means.
package backend
