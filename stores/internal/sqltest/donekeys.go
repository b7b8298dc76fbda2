//go:build !nightly

package sqltest

// DoneKeys is how many keys that are done a listing must find its way around.
const DoneKeys = 100_000
