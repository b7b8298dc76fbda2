package anystore

import (
	"cmp"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// TestURL: a URL that names no store is refused, without repeating a password.
func TestURL(t *testing.T) {
	tests := []struct{ url, want string }{
		{"", "has no scheme; the known URLs are memory:, sqlite:/PATH"},
		{"dibs.db", "has no scheme"},
		{"/srv/dibs.db", "did you mean sqlite:/srv/dibs.db?"},
		{"localhost:6379", "did you mean redis://localhost:6379?"},
		{"db.internal:5432", "did you mean postgres://USER@db.internal:5432/DATABASE?"},
		{"10.0.0.1:3306", "did you mean mysql://USER@10.0.0.1:3306/DATABASE?"},
		{"unix:/run/dibs/dibs.sock", "did you mean http+unix:/run/dibs/dibs.sock?"},
		{"unix:///run/dibs/dibs.sock", "did you mean http+unix:///run/dibs/dibs.sock?"},
		{"unix:secret@host", "not a scheme"},
		{"/app:secret@host", "has no scheme; the known URLs"},
		{"app:secret", "before the first colon is not a scheme"},
		{"mongo://:secret@host", `the scheme "mongo" is unknown; the known URLs are memory:, sqlite:/PATH, redis://HOST`},
		{"redis://secret@host", "USER:PASSWORD or :PASSWORD"},
		{"redis://:secret@", "the host is missing"},
		{"redis:host", "it must begin with redis://"},
		{"rediss+cluster://:secret@host/7", "only database 0"},
		{"memory:x", "write memory:"},
		{"user=app password=secret host=db", "no scheme"},
		{"user=app password=secret host=db:5432", "no scheme"},
		{"secret:app@tcp(db)/app", "not a scheme"},
		{"app:secret@tcp(db)/app", "not a scheme"},
		{"secret@db/app", "no scheme"},
		{"postgres://app:secret@db/app?sslmode=no&sslpassword=secret&password=secret", "sslmode is invalid"},
		{"mysql://app:sec ret@db/secret/x", ""},
		{"mysql://app:secret@db/app?migrate=%zz", ""},
		{"redis://:secret@db/x", ""},
		{"sqlite://app:secret@db/x", "a file has no host"},
		{"postgres://app:secret@host/app?wake=up", "auto, listen or poll"},
		{"postgres://app:secret@host/app?schema=Own", "it must be a lower-case letter"},
		{"postgresql://app:secret@host:port/app", ""},
		{"mysql://app:secret@host", "it names no database"},
		{"mariadb://app:secret@host/app?schema=x", `unknown parameter "schema"`},
		{"mysql://app:secret@host/app?prefix=a-b", "it must be a lower-case letter"},
		{"sqlite:", "the path is missing"},
		{"sqlite://dibs.db", ", or sqlite:/dibs.db if that is the absolute path"},
		{"sqlite::memory:", "memory:"},
		{"sqlite:file:dibs.db", "write the path alone"},
		{"sqlite:file:///srv/dibs.db", "write the path alone"},
		{"sqlite:dibs.db?share=1", "is relative"},
		{"sqlite:/dibs.db?share=1", `"share" is not a parameter: after ? there can be shared=true, for a file of an application, and lock_wait=10s`},
		{"sqlite:/dibs.db?", "after ? there can be"},
		{"sqlite:/what?.db", `".db" is not a parameter`},
		{"sqlite:/dibs.db?shared=yes", `shared is "yes"; write shared=true`},
		{"sqlite:/dibs.db?shared", `shared is ""; write shared=true`},
		{"sqlite:/dibs.db?shared=true&shared=false", "there twice"},
		{"sqlite:/dibs.db?lock_wait=10", `lock_wait is "10"; write a time of at least 1ms, such as lock_wait=10s`},
		{"sqlite:/dibs.db?lock_wait=0s", "at least 1ms"},
		{"sqlite:/dibs.db?lock_wait=-1s", "at least 1ms"},
		{"sqlite:/dibs.db?lock_wait=", "at least 1ms"},
		{"sqlite:/dibs.db?lock_wait=1us&shared=true", "at least 1ms"},
		{"sqlite:/srv/dibs.db ", "a space, a line break"},
		{"sqlite: /srv/dibs.db", "a space, a line break"},
		{"sqlite:/srv/dibs.db\r", "a space, a line break"},
		{"redis://:secret@host/1?prefix=shop\n", "a space, a line break"},
		{" redis://:secret@host", "a space, a line break"},
		{"sqlite:/srv/dibs.db # of all hosts", "it has a #"},
		{"redis://:secret@host/1#shop", "it has a #"},
		{"postgres:/app:secret@host/app", "write postgres://"},
		{"postgresql:secret", "write postgres://"},
		{"mysql:/secret", "write mysql://"},
		{"mysql://app:secret@/app", "the host is missing"},
		{"mysql://app:secret@:3306/app", "the host is missing"},
	}
	for _, test := range tests {
		_, err := Open(t.Context(), test.url, ToUse)
		if !errors.Is(err, ErrURL) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v; want %q", test.url, err, test.want)
		}
	}
}

// TestRelativePath: a relative path is refused by everything that takes a URL, and the error names
// the absolute path. No file is made.
func TestRelativePath(t *testing.T) {
	folder, home := t.TempDir(), t.TempDir()
	folder, err := filepath.EvalSymlinks(folder)
	testkit.Must(t, err)
	t.Chdir(folder)
	t.Setenv("HOME", home)
	open := func(mode Mode) func(string) error {
		return func(url string) error { _, err := Open(t.Context(), url, mode); return err }
	}
	for name, f := range map[string]func(string) error{
		"ToUse": open(ToUse), "ToInspect": open(ToInspect), "ToList": open(ToList), "ToCheck": open(ToCheck), "CheckURL": CheckURL,
		"Migrate":    func(url string) error { _, err := Migrate(t.Context(), url); return err },
		"Migrations": func(url string) error { _, err := Migrations(url); return err },
	} {
		for url, want := range map[string]string{
			"sqlite:dibs.db":               "sqlite:" + folder + "/dibs.db",
			"sqlite:./dibs.db":             "sqlite:" + folder + "/dibs.db",
			"sqlite:../dibs.db":            "sqlite:" + folder + "/../dibs.db",
			"sqlite:data/dibs.db":          "sqlite:" + folder + "/data/dibs.db",
			"sqlite:.":                     "sqlite:" + folder + "/.",
			"sqlite:app.db?shared=true":    "sqlite:" + folder + "/app.db?shared=true",
			"sqlite:./app.db?shared=false": "sqlite:" + folder + "/app.db?shared=false",
			"sqlite://dibs.db":             "sqlite:" + folder + "/dibs.db, or sqlite:/dibs.db ",
			"sqlite://app.db?shared=true":  "sqlite:" + folder + "/app.db?shared=true, or sqlite:/app.db?shared=true ",
			"sqlite:~/dibs.db":             "sqlite:" + home + "/dibs.db",
		} {
			if err := f(url); !errors.Is(err, ErrURL) || !strings.Contains(err.Error()+" ", "write "+want) {
				t.Errorf("%s(%q): %v; want %q", name, url, err, want)
			}
		}
	}
	if made, err := os.ReadDir(folder); err != nil || len(made) > 0 {
		t.Errorf("the folder has %v, %v", made, err)
	}
	for _, url := range []string{"sqlite:" + folder + "/../" + filepath.Base(folder) + "/dibs.db", "sqlite://" + folder + "/dibs.db"} {
		if err := CheckURL(url); err != nil {
			t.Errorf("%q: %v", url, err)
		}
	}
}

// TestUnusable: a file that is not a store is reported and not changed.
func TestUnusable(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	testkit.Must(t, os.WriteFile(text, []byte("Dear diary, this is not a database.\n"), 0o600))
	for _, path := range []string{dir, text, filepath.Join(dir, "missing", "dibs.db")} {
		_, err := Open(t.Context(), "sqlite:"+path, ToUse)
		if !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	_, err := Open(t.Context(), "sqlite:"+filepath.Join(dir, "dibs.db"), ToInspect)
	if !errors.Is(err, ErrUnusable) {
		t.Errorf("a file that is not there: %v", err)
	}
	for _, mode := range []Mode{ToInspect, ToList} {
		if _, err := Open(t.Context(), "memory:", mode); !errors.Is(err, ErrURL) {
			t.Errorf("memory, mode %d: %v", mode, err)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 {
		t.Errorf("the folder now has %v, %v", left, err)
	}
	if b, _ := os.ReadFile(text); !strings.HasPrefix(string(b), "Dear diary") {
		t.Errorf("the text is now %q", b)
	}
}

// TestLockWait: the URL of a file says how long a call waits while another program has the file locked.
func TestLockWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.db")
	url := "sqlite:" + path + "?lock_wait=70ms"
	s, err := Open(t.Context(), url, ToUse)
	testkit.Must(t, err)
	defer s.Close()
	db, err := sql.Open("sqlite", path)
	testkit.Must(t, err)
	defer db.Close()
	conn, err := db.Conn(t.Context())
	testkit.Must(t, err)
	defer conn.Close()
	_, err = conn.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	testkit.Must(t, err)
	answers := make([]store.Answer, 1)
	err = s.Store.Claim(t.Context(), []store.Claim{{Key: store.Key{Name: "k"}, Token: store.Token{1}, TTL: time.Minute, Permits: 1, Weight: 1}}, answers)
	says(t, cmp.Or(err, answers[0].Err), "for more than 70ms")
	if s.String() != url {
		t.Errorf("the store is %s; want %s", s, url)
	}
}

// opened is a URL, how the store shows it, and whether there is a password in it.
type opened struct {
	url, shown string
	secret     bool
}

// TestOpen: an existing store is opened, and has an inspector.
func TestOpen(t *testing.T) {
	if err := CheckURL("sqlite:/srv/shop#1/dibs.db"); err != nil {
		t.Errorf("a folder whose name has a #: %v", err)
	}
	url := "sqlite:" + filepath.Join(t.TempDir(), "dibs.db")
	checkOpen(t, opened{url: "memory:", shown: "memory:"}, opened{url: url, shown: url}, opened{url: url, shown: url})
	checkToInspect(t, url)
}

func checkOpen(t *testing.T, all ...opened) {
	t.Helper()
	for _, test := range all {
		migrated(t, test.url)
		s, err := Open(t.Context(), test.url, ToUse)
		if err != nil {
			t.Fatalf("%s: %v", test.shown, err)
		}
		shown, secret := Show(test.url)
		if s.String() != test.shown || shown != test.shown || secret != test.secret {
			t.Errorf("String() = %s, Show() = %s, %v; want %s", s, shown, secret, test.shown)
		}
		if _, err := s.Inspector(); err != nil {
			t.Error(err)
		}
		if version, err := s.Version(t.Context()); version == "" || err != nil {
			t.Errorf("%s: %q, %v", s, version, err)
		}
		testkit.Check(t, s.Close())
	}
}

func checkToInspect(t *testing.T, urls ...string) {
	t.Helper()
	for _, url := range urls {
		s, err := Open(t.Context(), url, ToInspect)
		testkit.Must(t, err)
		s.Close()
	}
}

// TestDownHasACure: the error about a server that does not run says what to do.
func TestDownHasACure(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://app@127.0.0.1:1/app", "postgres://app@nowhere.invalid/app", "mysql://app@127.0.0.1:1/app", "redis://127.0.0.1:1", "redis+unix:///nowhere/socket",
		"postgres://app@127.0.0.1:1,127.0.0.1:2/app", "redis+sentinel://127.0.0.1:1/master", "redis+cluster://127.0.0.1:1",
		"http://127.0.0.1:1", "https://:token@127.0.0.1:1,127.0.0.1:2", "http+unix:/nowhere/socket",
	} {
		for _, open := range []func() error{
			func() error { _, err := Open(t.Context(), url, ToCheck); return err },
			func() error { _, err := Open(t.Context(), url, ToUse); return err },
		} {
			err := open()
			says(t, err, "cannot be reached", "runs and listens at the address, and that no firewall is in between)")
			if text := err.Error(); strings.ContainsAny(text, "\n\t") || strings.Count(text, "refused") > strings.Count(url, ":1")+strings.Count(url, ":2") {
				t.Errorf("the error is %q; want one line that says once of each address what is wrong", text)
			}
		}
	}
}

// TestFromEnvironment: the URL of the store is in a variable, or in the file that another one names.
func TestFromEnvironment(t *testing.T) {
	folder := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	const url = "redis://:secret@host"
	good := file("good", url+"\n")
	for _, test := range []struct{ url, file, want, refused string }{
		{"", "", "", ""},
		{url, "", url, ""},
		{"", good, url, ""},
		{"", file("bare", url), url, ""},
		{"", file("windows", "\ufeff"+url+"\r\n\r\n"), url, ""},
		{url, good, url, ""},
		{url + "/1", good, "", "DIBS_STORE and the file of DIBS_STORE_FILE name different stores; unset one"},
		{"", filepath.Join(folder, "gone"), "", "DIBS_STORE_FILE: there is no file " + filepath.Join(folder, "gone")},
		{url, filepath.Join(folder, "gone"), "", "there is no file"},
		{"", file("empty", "\n"), "", "is empty"},
		{"", file("long", strings.Repeat("secret", maxURL)), "", "is longer than 65536 bytes"},
		{"", folder, "", "DIBS_STORE_FILE: "},
	} {
		got, err := FromEnvironment(func(name string) string {
			return map[string]string{"DIBS_STORE": test.url, "DIBS_STORE_FILE": test.file}[name]
		})
		if got != test.want || (err != nil) != (test.refused != "") {
			t.Errorf("%q and %q: %q, %v; want %q", test.url, test.file, got, err, test.want)
		}
		if err != nil && (!strings.Contains(err.Error(), test.refused) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%q and %q: %v; want %q", test.url, test.file, err, test.refused)
		}
	}
}
