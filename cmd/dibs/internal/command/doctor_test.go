//go:build unix

package command_test

import (
	"os"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestDoctor: the doctor prints findings with their cures, and the backend. It changes nothing.
func TestDoctor(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		b := newBench(t)
		b.says(t, 0, "unchecked  file: There is no file "+b.path("dibs.db")+" yet: the first dibs run, serve or proxy makes it.", "", "doctor")
		if b.exists("dibs.db") {
			t.Error("it made the file")
		}
		place := b.store
		b.store = "sqlite:" + b.path("missing/dibs.db")
		b.says(t, 1, "dangerous  folder: The file cannot be made: its folder does not exist", "", "doctor")
		b.store = place
		b.inspector(t)
		_, stdout, _ := b.run(t, "doctor") // with findings about this filesystem
		if !strings.Contains(stdout, "looked at  "+b.store+", SQLite 3.") {
			t.Error(stdout)
		}
	})
	t.Run("memory", func(t *testing.T) {
		b := newBench(t)
		b.store = "memory:"
		b.says(t, 0, "advice     memory: The store is a part of one process", "", "doctor")
	})
}

// TestDoctorConfig: the doctor of a proxy's configuration reports its faults as the proxy does,
// and then its findings with those of its store, the worst first. It reports its findings even if
// the store cannot be used.
func TestDoctorConfig(t *testing.T) {
	b := newBench(t)
	b.write(t, "dibs.yaml", "upstream: http://127.0.0.1:1\nleese: 3s\n")
	b.says(t, 64, "", "dibs doctor: dibs.yaml:2:1: unknown field \"leese\"", "doctor", "--config", "dibs.yaml")
	b.store = ""
	b.write(t, "dibs.yaml", "upstream: http://127.0.0.1:1\nadmin: 127.0.0.1:1\nscope: none\nstore: sqlite:"+b.path("other.db")+"\n")
	_, stdout, _ := b.run(t, "doctor", "--config", "dibs.yaml")
	for _, want := range []string{"advice     scope: ", "unchecked  file: There is no file " + b.path("other.db")} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in %s", want, stdout)
		}
	}
	b.store = "memory:"
	b.says(t, 0, `advice     scope: scope is none, so all clients share keys: a client that uses the key of another client gets its answer.
           Cure: Name what tells the clients apart, such as scope: credentials.
advice     plaintext: Answers are stored in plain text: a program that can read the store can read them.
           Cure: Set key-ring, if answers are secret.
advice     memory: `, "", "doctor", "--config", "dibs.yaml")
}

// TestDoctorPassword: a password that every user of the host can read is found.
func TestDoctorPassword(t *testing.T) {
	b := newPostgresBench(t) // whose URL has one
	b.inspector(t)
	const argument, file = "advice     password: The URL of the store is an argument", "advice     secret: The file dibs.yaml"
	b.write(t, "dibs.yaml", "upstream: http://127.0.0.1:1\nadmin: 127.0.0.1:1\nstore: "+b.store+"\n")
	testkit.Must(t, os.Chmod(b.path("dibs.yaml"), 0o644))
	b.says(t, 1, argument, "", "doctor", "--store", b.store)
	b.says(t, 1, argument, "", "doctor", "--store", b.store, "--config", "dibs.yaml")
	for _, args := range [][]string{{"doctor"}, {"doctor", "--config", "dibs.yaml"}} {
		if _, stdout, _ := b.run(t, args...); strings.Contains(stdout, argument) || strings.Contains(stdout, file) {
			t.Errorf("%v, with the URL in the environment: %s", args, stdout)
		}
	}
	b.store = ""
	b.says(t, 1, file, "", "doctor", "--config", "dibs.yaml")
}

// TestDoctorReport: a report has versions, kinds, names and settings, and nothing of a URL but its
// scheme, whether the store answers or not.
func TestDoctorReport(t *testing.T) {
	b := newPostgresBench(t) // whose URL has a password
	b.inspector(t)
	b.write(t, "dibs.yaml", "upstream: http://inner.example:1\nadmin: 127.0.0.1:1\nscope: none\nlease: 45s\non-crash: at-most-once\n"+
		"require-key: true\ncors: https://outer.example\nroutes:\n  - path: /hidden\n")
	for _, test := range []struct {
		name, store string
		code        int
		stdout      string
	}{
		{"a store that answers", b.store, 1, "postgres, PostgreSQL "},
		{"a store that does not", "postgres://app:" + secret + "@127.0.0.1:1/hidden?sslmode=disable", 69, "postgres, which was not asked or did not answer"},
		{"a file that is missing", "sqlite:" + b.path("hidden.db"), 0, "sqlite, which was not asked or did not answer"},
		{"no store", "", 64, "none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			b.store = test.store
			code, stdout, stderr := b.run(t, "doctor", "--report", "--config", "dibs.yaml")
			if code != test.code {
				t.Errorf("it exited with %d: %s", code, stderr)
			}
			for _, want := range []string{
				"dibs      ", " go1.", "store     " + test.stdout, "advice    scope\n",
				"setting   upstream: (set)\n", "setting   scope: (set)\n", "setting   lease: 45s\n",
				"setting   on-crash: at-most-once\n", "setting   require-key: true\n", "setting   cors: (set)\n", "setting   routes: 1\n",
			} {
				if !strings.Contains(stdout, want) {
					t.Errorf("%q is not in\n%s", want, stdout)
				}
			}
			for _, private := range []string{secret, "127.0.0.1", "inner", "outer", "token", "hidden", "app", "postgres@", "bench", b.dir} {
				if strings.Contains(stdout, private) {
					t.Errorf("%q is in\n%s", private, stdout)
				}
			}
		})
	}
	b.says(t, 64, "", "--report and --json exclude each other", "doctor", "--report", "--json")
}
