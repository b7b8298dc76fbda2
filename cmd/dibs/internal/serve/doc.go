// Package serve is dibs serve: the store contract over HTTP, for programs in every language.
//
// The server keeps nothing that matters. A claim names its key and its caller's token, every
// call may be repeated, and any number of servers may share a store. What a server remembers
// of a waiter is only how to reach it.
package serve
