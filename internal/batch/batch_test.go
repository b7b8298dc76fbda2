package batch_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/batch"
)

// TestDoAll: several elements are sent in as few calls as their size allows, in their order, and none after
// an error.
func TestDoAll(t *testing.T) {
	for _, direct := range []bool{true, false} {
		var sizes []int
		fails := errors.New("the store fails")
		b := batch.New(t.Context(), batch.Options{Size: 3, Direct: direct}, time.Hour, func(ctx context.Context, qs, as []int) error {
			if _, ok := ctx.Deadline(); !ok {
				t.Error("a call has no end")
			}
			sizes = append(sizes, len(qs))
			copy(as, qs)
			if slices.Contains(qs, -1) {
				return fails
			}
			return nil
		})
		for _, test := range []struct {
			qs, sizes []int
			err       error
		}{
			{nil, nil, nil}, {[]int{1}, []int{1}, nil}, {[]int{1, 2, 3}, []int{3}, nil}, {[]int{1, 2, 3, 4, 5, 6, 7}, []int{3, 3, 1}, nil},
			{[]int{-1}, []int{1}, fails}, {[]int{1, 2, 3, -1, 5, 6, 7}, []int{3, 3}, fails},
		} {
			sizes = nil
			as := make([]int, len(test.qs))
			if err := b.DoAll(t.Context(), test.qs, as); err != test.err || !slices.Equal(sizes, test.sizes) || err == nil && !slices.Equal(as, test.qs) {
				t.Errorf("%v is sent as %v and answered %v, %v; want %v", test.qs, sizes, as, err, test.sizes)
			}
		}
	}
}
