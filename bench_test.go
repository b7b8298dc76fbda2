package dibs_test

import (
	"context"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
)

func BenchmarkDoUncontended(b *testing.B) {
	s, err := memstore.New(nil)
	testkit.Must(b, err)
	defer s.Close()
	c, err := dibs.New(s, nil)
	testkit.Must(b, err)
	defer c.Close()
	nothing := func(context.Context) error { return nil }
	b.ReportAllocs()
	for b.Loop() {
		testkit.Must(b, c.Do(b.Context(), "key", nothing))
	}
}
