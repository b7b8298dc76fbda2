//go:build !nightly

package storetest

// nightly is whether the heavy properties, and those marked Nightly, are checked on
// stores that run in real time.
const nightly = false
