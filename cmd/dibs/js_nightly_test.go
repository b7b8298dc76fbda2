//go:build nightly && unix

package main

import "testing"

// TestJSMatrix strikes processes that use the client for JavaScript at each step of each call.
func TestJSMatrix(t *testing.T) {
	t.Parallel()
	nodeTests(t, "matrix.js")
}
