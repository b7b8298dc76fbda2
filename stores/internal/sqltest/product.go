package sqltest

import (
	"errors"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/product"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// Product tests a store on a server that says that it is the product: start refuses it by its name,
// with the error unsupported, or open opens it, and Check names it if it is not tested.
func Product[S store.Checker](t *testing.T, p *product.Product, unsupported error, start func() (S, error), open func() S) {
	t.Helper()
	if p.Store != product.Refused {
		FindsProduct(t, open(), p.Name, map[product.Verdict]store.Severity{product.Untested: store.SeverityAdvice}[p.Store])
		return
	}
	_, err := start()
	for _, want := range []string{p.Name, p.Why, p.Cure, p.Source} {
		if err == nil || !errors.Is(err, unsupported) || !strings.Contains(err.Error(), want) {
			t.Fatalf("Open: %v; want %v with %q", err, unsupported, want)
		}
	}
}

// FindsProduct tests what Check finds about the product: a finding of that severity with the text,
// or none if it is "".
func FindsProduct(t *testing.T, s store.Checker, text string, severity store.Severity) {
	t.Helper()
	found, err := s.Check(t.Context())
	testkit.Must(t, err)
	var about []store.Finding
	for _, f := range found {
		if f.Name == "product" {
			about = append(about, f)
		}
	}
	switch {
	case severity == "" && len(about) == 0:
	case len(about) != 1 || about[0].Severity != severity || !strings.Contains(about[0].What, text):
		t.Errorf("found %+v, want %q with %q", about, severity, text)
	}
}
