//go:build nightly && unix

package main

import (
	"strings"
	"testing"
)

// TestRubyMatrix strikes processes that use the client for Ruby at each step of each call.
func TestRubyMatrix(t *testing.T) {
	t.Parallel()
	if out := ruby(t, []string{"DIBS_MATRIX=1"}, "test/matrix.rb"); !strings.Contains(out, " 0 failures, 0 errors, 0 skips") {
		t.Error(out)
	}
}
