package anystore

import (
	"context"
	"strings"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/casstore"
	"github.com/dibs-go/dibs/stores/casstore/s3"
)

var s3Kind = kind{schemes: []string{"s3"}, form: s3.Form, parse: func(url string) (address, error) {
	o, err := s3.Parse(url)
	if err != nil {
		return nil, without(err, s3.ErrURL)
	}
	return s3Address{o}, nil
}}

// s3Address is the URL of a store in an object storage.
type s3Address struct{ *s3.Options }

// secret is false, because credentials are not in the URL.
func (s3Address) secret() bool { return false }

func (s3Address) find() error { return nil }

func (a s3Address) toRead() address {
	o := *a.Options
	o.Store.ReadOnly = true
	return s3Address{&o}
}

func (a s3Address) check(context.Context) ([]store.Finding, error) {
	host, plain := strings.CutPrefix(a.Endpoint, "http://")
	if !plain {
		return nil, nil
	}
	return unencrypted("Write https in the endpoint.", strings.TrimRight(host, "/")), nil
}

func (a s3Address) open(ctx context.Context) (*Store, error) {
	kv, err := s3.NewKV(a.Options)
	if err != nil {
		return nil, err
	}
	s, err := casstore.Open(ctx, kv, &a.Store)
	if err != nil {
		_ = kv.Close() // returns nil
		return nil, err
	}
	end := func() error {
		_ = s.Close() // returns nil
		return kv.Close()
	}
	return &Store{Store: s, address: a, close: end, version: kv.Version, reads: a.Store.ReadOnly}, nil
}
