// Package storekit is what all stores share: the listeners that stores wake, keys as bytes,
// the condition of an entry, the meaning of a server's error, a claim that changes nothing,
// the findings of a check, and names in SQL.
package storekit
