//go:build nightly && unix

package main

import (
	"strings"
	"testing"
)

// TestPythonMatrix strikes processes that use the client for Python at each step of each call.
func TestPythonMatrix(t *testing.T) {
	t.Parallel()
	if out := runPython(t, nil, "tests/matrix.py"); !strings.HasSuffix(out, "\nOK\n") {
		t.Error(out)
	}
}
