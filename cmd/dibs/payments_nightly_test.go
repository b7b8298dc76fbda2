//go:build nightly && unix

package main

import "testing"

// TestThousandPayments: a thousand workers are killed, and a thousand orders are paid once.
func TestThousandPayments(t *testing.T) {
	t.Parallel()
	checkPayments(t, 125, 8)
}
