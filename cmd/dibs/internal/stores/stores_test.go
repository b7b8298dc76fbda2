package stores

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestURL: what does not name a store is refused, and nothing of it that could
// be a password is repeated.
func TestURL(t *testing.T) {
	tests := []struct{ url, want string }{
		{"", "has no scheme; the known ones are memory:, sqlite:PATH"},
		{"dibs.db", "has no scheme"},
		{"redis://:secret@host", `the scheme "redis" is unknown; the known ones are memory:, sqlite:PATH`},
		{"memory:x", "write memory:"},
		{"sqlite:", "the path is missing"},
		{"sqlite://dibs.db", "write sqlite:dibs.db"},
		{"sqlite::memory:", "memory:"},
	}
	for _, test := range tests {
		_, err := Open(t.Context(), test.url)
		if !errors.Is(err, ErrURL) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v; want %q", test.url, err, test.want)
		}
	}
}

// TestUnusable: what is in the place of a store is said and left as it is.
func TestUnusable(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte("Dear diary, this is not a database.\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, text, filepath.Join(dir, "missing", "dibs.db")} {
		_, err := Open(t.Context(), "sqlite:"+path)
		if !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	_, err := OpenExisting(t.Context(), "sqlite:"+filepath.Join(dir, "dibs.db"))
	if !errors.Is(err, ErrUnusable) {
		t.Errorf("a file that is not there: %v", err)
	}
	if _, err := OpenExisting(t.Context(), "memory:"); !errors.Is(err, ErrURL) {
		t.Errorf("memory: %v", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("the folder now has %v, %v", left, err)
	}
	if b, _ := os.ReadFile(text); !strings.HasPrefix(string(b), "Dear diary") {
		t.Errorf("the text is now %q", b)
	}
}

// TestOpen: a store that is there is opened, and can be looked into.
func TestOpen(t *testing.T) {
	url := "sqlite:" + filepath.Join(t.TempDir(), "dibs.db")
	for _, open := range []string{"memory:", url, url} {
		s, err := Open(t.Context(), open)
		if err != nil {
			t.Fatalf("%s: %v", open, err)
		}
		if s.String() != open {
			t.Errorf("String() = %s; want %s", s, open)
		}
		if _, err := s.Inspector(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	s, err := OpenExisting(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}
