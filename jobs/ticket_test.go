package jobs

import (
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/store"
)

func FuzzTicket(f *testing.F) {
	t := ticket{place: dibs.Place{Key: dibs.Key{Namespace: "n", Name: "a key"}, Token: store.Token{1}}}
	f.Add(t.String())
	t.number = 1 << 60
	f.Add(t.String())
	f.Add("dibs1.AQAAAAAAAAAAAAAAAAAAAA.bg.aw~01")
	f.Add("~")
	f.Fuzz(func(t *testing.T, s string) {
		k, err := parseTicket(s)
		if err == nil && k.String() != s {
			t.Errorf("%q is read as %q", s, k.String())
		}
	})
}
