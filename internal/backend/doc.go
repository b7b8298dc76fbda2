// Package backend is what all stores share: the listeners that stores wake, keys as bytes,
// the condition of an entry, and the meaning of a server's error.
package backend
