//go:build !nightly

package storetest

// nightly says that the heavy properties are checked on stores that run in real time.
const nightly = false
