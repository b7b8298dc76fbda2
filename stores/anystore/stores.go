// Package anystore opens the store that a URL names. It is the only package that knows every
// kind of store.
package anystore

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

// openLimit bounds opening a store and the first question to it, so that a command reports
// within 10 s that the store cannot be used.
const openLimit = 9 * time.Second

var (
	// ErrURL says that the URL names no store. The error says what is wrong with it.
	ErrURL = errors.New("not the URL of a store")
	// ErrUnusable says that the store cannot be reached or used, and why.
	ErrUnusable = errors.New("the store cannot be used")
)

// Store is an open store. Store.Store is what a dibs.Client takes; it has the optional interfaces
// that the store has.
type Store struct {
	Store   store.Store
	address address
	close   func() error
	version func(context.Context) (string, error)
	reads   bool // no more than the rights to read are needed
}

// String returns the URL without credentials.
func (s *Store) String() string { return s.address.String() }

// Close closes the store.
func (s *Store) Close() error { return s.close() }

// Version returns the store's backend with its version: "PostgreSQL 16.2".
func (s *Store) Version(ctx context.Context) (string, error) { return s.version(ctx) }

// Inspector returns the store's store.Inspector, or an ErrUnusable if it has none.
func (s *Store) Inspector() (store.Inspector, error) {
	i, ok := s.Store.(store.Inspector)
	if !ok {
		return nil, fmt.Errorf("%w: %s cannot list its keys", ErrUnusable, s)
	}
	return i, nil
}

// Probe asks the store a question that changes nothing.
func (s *Store) Probe(ctx context.Context) error {
	if in, ok := s.Store.(store.Inspector); ok && s.reads {
		for _, err := range in.List(ctx, store.Query{Namespace: new(string), Name: "dibs probe"}) {
			return err
		}
		return nil
	}
	return storekit.Probe(ctx, s.Store)
}

// Check returns what is wrong with the set-up of the store's backend and with its URL, in any
// order.
func (s *Store) Check(ctx context.Context) ([]store.Finding, error) {
	found, err := s.address.check(ctx)
	if c, ok := s.Store.(store.Checker); ok && err == nil {
		var more []store.Finding
		more, err = c.Check(ctx)
		found = append(found, more...)
	}
	return found, err
}

// kind is one kind of store.
type kind struct {
	schemes []string
	form    string // of its URLs, for help texts
	parse   func(url string) (address, error)
}

// kinds are all kinds of stores.
var kinds = []kind{memoryKind, sqliteKind, redisKind, postgresKind, mysqlKind, s3Kind, httpKind}

// address is the URL of a store after parsing.
type address interface {
	// String returns the URL without credentials.
	String() string
	// secret reports whether the URL has a password.
	secret() bool
	// find returns an error if there is no store to look into. It creates none.
	find() error
	// open opens the store. It creates no tables.
	open(context.Context) (*Store, error)
	// toRead returns the address of the same store, which open then opens for a program that writes
	// nothing, and with a user that may only read.
	toRead() address
	// check returns what is wrong with the URL, and with the rights of its user.
	check(context.Context) ([]store.Finding, error)
}

// Show returns the URL of a store without credentials, and whether it has a password.
func Show(url string) (shown string, secret bool) {
	a, err := parse(url)
	if err != nil {
		return "", true
	}
	return a.String(), a.secret()
}

// CheckURL returns an ErrURL for a text that is not a URL of a store. It connects to nothing.
func CheckURL(url string) error {
	_, err := parse(url)
	return err
}

// Forms returns the forms of URLs, for help texts.
func Forms() []string {
	forms := make([]string, len(kinds))
	for i, k := range kinds {
		forms[i] = k.form
	}
	return forms
}

// Mode is what a program opens a store for.
type Mode uint8

// The modes of Open.
const (
	// ToUse is for a dibs.Client. A SQLite file that is missing is created.
	ToUse Mode = iota
	// ToInspect is for the Inspector of the store of other processes. It creates nothing, and
	// refuses a store in memory.
	ToInspect
	// ToList is ToInspect for a program that calls the Inspector's List and nothing else. It
	// writes nothing, and needs no rights but those to read.
	ToList
	// ToCheck is ToList for Check, which writes objects of its own to an object storage. It opens a
	// store in memory, too.
	ToCheck
)

// Open opens the store that the URL names, and asks it a question. It creates no tables on a
// server, unless the mode is ToUse or ToInspect and the URL says migrate=true: call Migrate, or
// run dibs migrate, which the error names. It returns an ErrURL or, within 10 s, an ErrUnusable.
//
// A relative path of a SQLite file is an ErrURL, because it would be another store in each folder.
func Open(ctx context.Context, url string, m Mode) (*Store, error) {
	a, err := parse(url)
	if err != nil {
		return nil, err
	}
	if a == address(memoryAddress{}) && (m == ToInspect || m == ToList) {
		return nil, fmt.Errorf("%w: a store in memory ends with its process, so there is nothing to look into; name the store with --store or DIBS_STORE", ErrURL)
	}
	if m != ToUse {
		if err := a.find(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnusable, err)
		}
	}
	if m == ToList || m == ToCheck {
		a = a.toRead()
	}
	return open(ctx, a)
}

// isScheme matches the scheme of a URL.
var isScheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*$`)

// ports are the usual ports of servers, and the beginning and the end of the URLs of their stores.
var ports = map[string][2]string{
	"6379": {"redis://", ""}, "5432": {"postgres://USER@", "/DATABASE"}, "3306": {"mysql://USER@", "/DATABASE"}, "7331": {"http://", ""},
}

// isHost matches the name or the address of a host. It matches no text with a password.
var isHost = regexp.MustCompile(`^[A-Za-z0-9.-]+$`)

// meantURL returns the URL that a path, a HOST:PORT without a scheme or the address of a Unix socket was
// meant to be; "" for any other text.
func meantURL(text string) string {
	host, port, _ := strings.Cut(text, ":")
	form, known := ports[port]
	switch {
	case strings.HasPrefix(text, "/") && !strings.ContainsAny(text, "@:?"):
		return "sqlite:" + text
	case known && isHost.MatchString(host):
		return form[0] + text + form[1]
	case host == "unix" && !strings.ContainsAny(port, "@?"):
		return "http+" + text
	}
	return ""
}

func parse(url string) (address, error) {
	// What surrounds a value in a file of settings would name another store.
	switch first, rest, _ := strings.Cut(url, ":"); {
	case strings.TrimSpace(url) != url || strings.TrimSpace(rest) != rest || strings.ContainsFunc(url, unicode.IsControl):
		return nil, fmt.Errorf("%w: a space, a line break or a control character is around it or in it; remove it", ErrURL)
	case strings.Contains(url, " #") || strings.Contains(url, "#") && isScheme.MatchString(first) && first != "sqlite":
		return nil, fmt.Errorf("%w: it has a #; write %%23 in a password, and remove what follows if it is a comment", ErrURL)
	}
	if meant := meantURL(url); meant != "" {
		return nil, fmt.Errorf("%w: it has no scheme of a store; did you mean %s?", ErrURL, meant)
	}
	scheme, _, ok := strings.Cut(url, ":")
	if !ok || !isScheme.MatchString(scheme) {
		// The text is not shown, because a DSN has its password anywhere.
		return nil, fmt.Errorf("%w: it has no scheme; the known URLs are %s", ErrURL, strings.Join(Forms(), ", "))
	}
	i := slices.IndexFunc(kinds, func(k kind) bool { return slices.Contains(k.schemes, scheme) })
	if i < 0 {
		if !strings.Contains(url, "://") { // it may be USER:PASSWORD@…, with the two in any order
			return nil, fmt.Errorf("%w: the text before the first colon is not a scheme of a store; the known URLs are %s", ErrURL, strings.Join(Forms(), ", "))
		}
		// Only the scheme is shown, because the rest may have a password.
		return nil, fmt.Errorf("%w: the scheme %q is unknown; the known URLs are %s", ErrURL, scheme, strings.Join(Forms(), ", "))
	}
	a, err := kinds[i].parse(url)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrURL, err)
	}
	return a, nil
}

// without returns the error without the sentinel that its text begins with.
func without(err, sentinel error) error {
	if errors.Is(err, sentinel) {
		return errors.New(strings.TrimPrefix(err.Error(), sentinel.Error()+": "))
	}
	return err
}

// unusable returns an ErrUnusable that names the store, unless err has the file's path.
func unusable(a address, err error) error {
	if f, ok := a.(sqliteAddress); ok && strings.Contains(err.Error(), f.path) {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	return fmt.Errorf("%w: %s: %w", ErrUnusable, a, err)
}

// open opens in a goroutine, because a file on a network can block without a limit.
func open(ctx context.Context, a address) (*Store, error) {
	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	type result struct {
		store *Store
		err   error
	}
	done := make(chan result, 1)
	go func() {
		store, err := openMigrated(ctx, a)
		if err == nil {
			if err = store.Probe(ctx); err != nil {
				_ = store.Close()
			}
		}
		done <- result{store, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, unusable(a, r.err)
		}
		return r.store, nil
	case <-ctx.Done():
		go func() {
			if r := <-done; r.err == nil {
				r.store.Close()
			}
		}()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, fmt.Errorf("%w: %s did not answer within %v", ErrUnusable, a, openLimit)
		}
		return nil, fmt.Errorf("%w: %w", ErrUnusable, context.Cause(ctx))
	}
}
