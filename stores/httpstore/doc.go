// Package httpstore is the store over dibs serve, for hosts that may not have the database's
// password. It speaks the lease API (docs/reference/serve.md) and requires nothing outside the standard
// library.
//
// All servers that it is given must share one store. A call goes to the server that answered
// last. If that one is away, the next one gets the call: every call may be repeated, because
// claims name their own token.
package httpstore
