package command

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/sqlitestore"
)

// TestEncryptedAnswers: commands say that an answer is encrypted, and settle encrypts the answer
// that it stores.
func TestEncryptedAnswers(t *testing.T) {
	url, unknown := leave(t)
	text := "new:" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("n"), 32))
	file := filepath.Join(t.TempDir(), "ring")
	testkit.Must(t, os.WriteFile(file, []byte(text), 0o600))
	steps := []struct {
		args []string
		code int
		want string
	}{
		{[]string{"resolve", "--id", unknown, "--rerun", "--key-ring", file, "--yes"}, 64, "key-ring: it has no effect with --rerun"},
		{[]string{"resolve", "--id", unknown, "--status", "204", "--key-ring", file + "x", "--yes"}, 64, "key-ring: "},
		{[]string{"show", scope + "unknown"}, 0, "unknown: it may or may not"},
		{[]string{"resolve", "--id", unknown, "--status", "204", "--key-ring", file, "--yes"}, 0, "retries get 204"},
		{[]string{"show", scope + "unknown"}, 0, "bytes, encrypted with the key new, stored"},
		{[]string{"show", "--json", scope + "unknown"}, 0, `"encrypted_with":"new"`},
		{[]string{"ls", "--state", "all"}, 0, "bytes encrypted, "},
		{[]string{"ls", "--state", "all", "--json"}, 0, `"encrypted_with":"new"`},
	}
	for _, step := range steps {
		code, stdout, stderr := call(t, nil, append(step.args, "--store", url)...)
		if code != step.code || !strings.Contains(stdout+stderr, step.want) {
			t.Errorf("%v: %d %s%s; want %d and %q", step.args, code, stdout, stderr, step.code, step.want)
		}
	}

	s, err := sqlitestore.Open(strings.TrimPrefix(url, "sqlite:"), nil)
	testkit.Must(t, err)
	defer s.Close()
	key := dibs.Key{Name: scope + "unknown"}
	ring, err := idempotency.ParseKeyRing(text)
	testkit.Must(t, err)
	for e, err := range s.List(t.Context(), store.Query{Name: key.Name, Data: true}) {
		testkit.Must(t, err)
		record, err := ring.Decrypt(key, dibs.Fingerprint{1}, e.Record.Data)
		testkit.Must(t, err)
		if a, err := idempotency.DecodeAnswer(record, 0); err != nil || a.Status != 204 || e.Record.Left > idempotency.DefaultRetention+time.Minute {
			t.Errorf("stored is %+v, %v", a, err)
		}
	}
}
