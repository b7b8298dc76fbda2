// Package stores opens the store that a URL names. It is the one place that
// knows every backend.
package stores

import (
	"context"
	"errors"
	"fmt"
	neturl "net/url"
	"slices"
	"strings"
	"time"

	"github.com/dibs-go/dibs"
)

// Default is the URL of the store when nobody names one.
const Default = "sqlite:dibs.db"

// openLimit bounds opening a store, and the first question put to it: a command says
// within 10 s that it cannot be used.
const openLimit = 9 * time.Second

var (
	// ErrURL says that the URL names no store. The error says what is wrong with it.
	ErrURL = errors.New("not the URL of a store")
	// ErrUnusable says that the store cannot be reached or used, and why.
	ErrUnusable = errors.New("the store cannot be used")
)

// Store is an open store.
type Store struct {
	dibs.Store
	url string
	// version says what the backend is, for people.
	version func(context.Context) (string, error)
	// database opens what Database returns; nil where there is none.
	database func() (*Database, error)
	close    func() error
}

// String returns the URL without credentials.
func (s *Store) String() string { return s.url }

// Inspector returns the store's listing and forcing side, or an ErrUnusable.
func (s *Store) Inspector() (dibs.Inspector, error) {
	i, ok := s.Store.(dibs.Inspector)
	if !ok {
		return nil, fmt.Errorf("%w: %s cannot be looked into", ErrUnusable, s.url)
	}
	return i, nil
}

// Close closes the store.
func (s *Store) Close() error { return s.close() }

// Version says what the store's backend is, for people: "PostgreSQL 16.2".
func (s *Store) Version(ctx context.Context) (string, error) { return s.version(ctx) }

// backend opens the stores of one scheme. rest is the URL after the colon.
type backend struct {
	scheme string
	form   string // how its URLs look; "" when another's form says it
	// lasting stores outlive the process, so that another one can look into them.
	lasting bool
	// check refuses what cannot be the rest of a URL.
	check func(rest string) error
	// show returns the rest without credentials, and whether it had any that are
	// secret; nil where there are none.
	show func(rest string) (shown string, secret bool)
	// exists returns an error when there is nothing to look into; nil where there
	// is nothing to be made.
	exists func(rest string) error
	// tables makes what the store keeps things in, if it is missing; nil where there is
	// nothing of the kind.
	tables func(ctx context.Context, rest string) (did string, err error)
	// statements returns tables as SQL; nil where nobody can run it by hand.
	statements func(rest string) (string, error)
	// missing reports whether an error of open means that the tables have to be
	// made first; nil where open makes what it needs.
	missing func(error) bool
	// open sets the Store's store, how it is closed, and what else it has. It makes
	// no tables.
	open func(ctx context.Context, rest string, s *Store) error
}

// url returns the URL without credentials.
func (b *backend) url(rest string) string {
	if b.show != nil {
		rest, _ = b.show(rest)
	}
	return b.scheme + ":" + rest
}

// showUser is the show of URLs as SQL databases have them. What is left of one names
// the user, without whom nobody would know the database again.
func showUser(rest string) (string, bool) {
	u, err := neturl.Parse("x:" + rest)
	if err != nil {
		return "", true // it was checked
	}
	_, secret := u.User.Password()
	if secret {
		u.User = neturl.User(u.User.Username())
	}
	query := u.Query()
	for _, name := range []string{"password", "sslpassword"} {
		if query.Has(name) {
			secret = true
			query.Del(name)
			u.RawQuery = query.Encode()
		}
	}
	return strings.TrimPrefix(u.String(), "x:"), secret
}

// backends is everything that a URL can name.
var backends = slices.Concat([]backend{memoryBackend, sqliteBackend}, redisBackends(), postgresBackends(), mysqlBackends())

// Show returns the URL of a store without credentials, and whether it had any.
func Show(url string) (shown string, secret bool) {
	b, rest, err := parse(url)
	if err != nil {
		return "", true
	}
	if b.show != nil {
		_, secret = b.show(rest)
	}
	return b.url(rest), secret
}

// Forms returns how the URLs of stores look, for help texts.
func Forms() []string {
	var forms []string
	for _, b := range backends {
		if b.form != "" {
			forms = append(forms, b.form)
		}
	}
	return forms
}

// Open opens the store that the URL names, making it if need be, and puts a
// first question to it. It returns an ErrURL or, within 10 s, an ErrUnusable.
func Open(ctx context.Context, url string) (*Store, error) {
	b, rest, err := parse(url)
	if err != nil {
		return nil, err
	}
	return open(ctx, b, rest, b.openMade)
}

// OpenExisting is Open for those who look into what others left: it makes
// nothing, and refuses stores that nobody else can have written to.
func OpenExisting(ctx context.Context, url string) (*Store, error) {
	b, _, err := parse(url)
	if err == nil && !b.lasting {
		err = fmt.Errorf("%w: %s: lives and ends with one process, there is nothing to look into; name the store with --store or DIBS_STORE", ErrURL, b.scheme)
	}
	if err != nil {
		return nil, err
	}
	return OpenFound(ctx, url)
}

// OpenFound is Open that makes nothing.
func OpenFound(ctx context.Context, url string) (*Store, error) {
	b, rest, err := parse(url)
	if err != nil {
		return nil, err
	}
	if b.exists != nil {
		if err := b.exists(rest); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
		}
	}
	return open(ctx, b, rest, b.openFound)
}

func parse(url string) (*backend, string, error) {
	scheme, rest, ok := strings.Cut(url, ":")
	if !ok {
		return nil, "", fmt.Errorf("%w: %q has no scheme; the known ones are %s", ErrURL, url, strings.Join(Forms(), ", "))
	}
	i := slices.IndexFunc(backends, func(b backend) bool { return b.scheme == scheme })
	if i < 0 {
		// The rest may hold a password: only the scheme is repeated.
		return nil, "", fmt.Errorf("%w: the scheme %q is unknown; the known ones are %s", ErrURL, scheme, strings.Join(Forms(), ", "))
	}
	if err := backends[i].check(rest); err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrURL, err)
	}
	return &backends[i], rest, nil
}

// open runs f, one of the backend's, on a goroutine of its own: a file on a network
// that hangs must not hang the program.
func open(ctx context.Context, b *backend, rest string, f func(context.Context, string, *Store) error) (*Store, error) {
	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	type result struct {
		store *Store
		err   error
	}
	done := make(chan result, 1)
	go func() {
		store := &Store{url: b.url(rest)}
		err := f(ctx, rest, store)
		if err == nil {
			if err = store.Probe(ctx); err != nil {
				_ = store.close()
			}
		}
		if err != nil {
			done <- result{err: err}
			return
		}
		done <- result{store: store}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnusable, r.err)
		}
		return r.store, nil
	case <-ctx.Done():
		go func() {
			if r := <-done; r.err == nil {
				r.store.Close()
			}
		}()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, fmt.Errorf("%w: %s did not answer within %v", ErrUnusable, b.url(rest), openLimit)
		}
		return nil, fmt.Errorf("%w: %w", ErrUnusable, context.Cause(ctx))
	}
}

// Probe asks the store something, and changes nothing.
func (s *Store) Probe(ctx context.Context) error {
	claims := []dibs.Claim{{Key: dibs.Key{Name: "dibs probe"}, Mode: dibs.Look, Permits: 1, Weight: 1}}
	answers := make([]dibs.Answer, 1)
	if err := s.Claim(ctx, claims, answers); err != nil {
		return err
	}
	return answers[0].Err
}
