package anystore

import (
	"context"
	"strings"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/httpstore"
)

// httpKind is a store over dibs serve.
var httpKind = kind{
	schemes: httpstore.Schemes(),
	form:    "https://:TOKEN@HOST[,HOST…] of dibs serve (also http://, http+unix:PATH)",
	parse: func(url string) (address, error) {
		a, err := httpstore.Parse(url)
		if err != nil {
			return nil, without(err, httpstore.ErrURL)
		}
		return httpAddress{Address: a, url: url}, nil
	},
}

// httpAddress is the URL of a store over dibs serve.
type httpAddress struct {
	*httpstore.Address
	url   string
	reads bool
}

func (a httpAddress) secret() bool { return a.HasToken() }

func (httpAddress) find() error { return nil }

func (a httpAddress) toRead() address { a.reads = true; return a }

func (a httpAddress) check(context.Context) ([]store.Finding, error) {
	hosts, ok := strings.CutPrefix(a.String(), "http://")
	if !ok {
		return nil, nil
	}
	return unencrypted("Serve with --tls-cert, and write https instead of http in the URL.", strings.Split(hosts, ",")...), nil
}

func (a httpAddress) open(context.Context) (*Store, error) {
	s, err := httpstore.Open(a.url, nil)
	if err != nil {
		return nil, err
	}
	return &Store{Store: s, address: a, close: s.Close, version: s.Version, reads: a.reads}, nil
}
