package dibs_test

import (
	"context"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/memstore"
)

func BenchmarkDoUncontended(b *testing.B) {
	s, err := memstore.New(nil)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	c, err := dibs.New(s, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	nothing := func(context.Context) error { return nil }
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Do(b.Context(), "key", nothing); err != nil {
			b.Fatal(err)
		}
	}
}
