package idempotency_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// ringKey returns a key for tests.
func ringKey(c byte) []byte { return bytes.Repeat([]byte{c}, 32) }

// ringOf returns a ring of keys that are made from their IDs. The first is the current one, or
// Plaintext.
func ringOf(t testing.TB, ids ...string) *idempotency.KeyRing {
	t.Helper()
	keys := make(map[string][]byte)
	for _, id := range ids {
		if keys[id] = ringKey(id[0]); id == idempotency.Plaintext {
			keys[id] = nil
		}
	}
	r, err := idempotency.NewKeyRing(ids[0], keys)
	testkit.Must(t, err)
	return r
}

// storedUnder is the key of the records in these tests.
var storedUnder = dibs.Key{Namespace: "shop", Name: "http:scope:k"}

// asked is the fingerprint of their requests.
var asked = dibs.Fingerprint{1, 2, 3}

func TestKeyRingRoundTrip(t *testing.T) {
	r := ringOf(t, "new", "old")
	for _, n := range []int{0, 1, 100, 100_000} {
		record := bytes.Repeat([]byte("r"), n)
		encrypted := r.Encrypt(storedUnder, asked, time.Hour, record)
		if id, ok := idempotency.EncryptedWith(encrypted); id != "new" || !ok || n > 1 && bytes.Contains(encrypted, record) {
			t.Errorf("%d bytes: encrypted with %q, %v", n, id, ok)
		}
		if bytes.Equal(encrypted, r.Encrypt(storedUnder, asked, time.Hour, record)) {
			t.Errorf("%d bytes: two records are the same, so the nonce is", n)
		}
		if got, err := r.Decrypt(storedUnder, asked, encrypted); err != nil || !bytes.Equal(got, record) {
			t.Errorf("%d bytes: %d came back, %v", n, len(got), err)
		}
	}
}

func TestKeyRingRefusesToDecrypt(t *testing.T) {
	old := ringOf(t, "old")
	record := old.Encrypt(storedUnder, asked, time.Hour, []byte("HTTP/1.1 200 OK\r\n\r\n"))
	isRefused := func(what string, r *idempotency.KeyRing, key dibs.Key, record []byte, want string) {
		t.Helper()
		if got, err := r.Decrypt(key, asked, record); !errors.Is(err, idempotency.ErrRecord) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want %s", what, got, err, want)
		}
	}
	const missing = `"old", which the key ring does not have`
	isRefused("another ring", ringOf(t, "new"), storedUnder, record, missing)
	isRefused("no ring", nil, storedUnder, record, missing)
	same, err := idempotency.NewKeyRing("old", map[string][]byte{"old": ringKey('x')})
	testkit.Must(t, err)
	isRefused("another key with the ID", same, storedUnder, record, "another key had this ID")
	for _, key := range []dibs.Key{
		{Namespace: "shop", Name: "http:scope:l"},
		{Namespace: "sho", Name: "phttp:scope:k"}, // the same bytes in all
		{Name: "shophttp:scope:k"},
		{Namespace: "shed", Name: "http:scope:k"},
		{},
	} {
		isRefused(fmt.Sprintf("moved to %q", key), old, key, record, "moved")
	}
	if got, err := old.Decrypt(storedUnder, dibs.Fingerprint{1, 2}, record); !errors.Is(err, idempotency.ErrRecord) {
		t.Errorf("for another request: %q, %v", got, err)
	}
	if got, err := old.Decrypt(storedUnder, dibs.Fingerprint{}, record); !errors.Is(err, idempotency.ErrRecord) {
		t.Errorf("for a request without a fingerprint: %q, %v", got, err)
	}
	later := []byte(strings.Replace(string(record), "/old/", "/old/9", 1))
	isRefused("made to last", old, storedUnder, later, "changed")
	over := old.Encrypt(storedUnder, asked, -3*time.Second, nil)
	isRefused("put back", old, storedUnder, over, "its retention ended at 2")
	head := bytes.IndexByte(record, '\n') + 1
	for i := head; i < len(record); i++ {
		changed := bytes.Clone(record)
		changed[i] ^= 1
		isRefused(fmt.Sprintf("byte %d changed", i), old, storedUnder, changed, "changed")
		isRefused(fmt.Sprintf("cut to %d bytes", i), old, storedUnder, record[:i], "changed")
	}
	renamed := bytes.Replace(record, []byte("old"), []byte("odd"), 1)
	isRefused("another ID of the same key", ringOf(t, "odd"), storedUnder, renamed, "changed")
	if _, err := idempotency.DecodeAnswer(record, 0); !errors.Is(err, idempotency.ErrRecord) || !strings.Contains(err.Error(), `"old"`) {
		t.Errorf("decoded without a ring: %v", err)
	}
	for _, text := range []string{"GCM/", "GCM/\n", "GCM/old", "GCM/o d\n", "GCM/old\n", "GCM/old/x\n", "GCM/" + strings.Repeat("o", 33) + "/1\n"} {
		if _, ok := idempotency.EncryptedWith([]byte(text)); ok {
			t.Errorf("%q is encrypted", text)
		}
		if _, err := idempotency.DecodeAnswer([]byte(text), 0); !errors.Is(err, idempotency.ErrRecord) {
			t.Errorf("%q is an answer: %v", text, err)
		}
	}
}

func TestKeyRingRefused(t *testing.T) {
	encoded := func(n int) string { return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("s"), n)) }
	tests := []struct{ text, want string }{
		{"", "has no key"},
		{" \n", "has no key"},
		{"plaintext", "has no key"},
		{"plaintext:" + encoded(32), `"plaintext" cannot have a key`},
		{"plaintext plaintext a:" + encoded(32), `two keys with the ID "plaintext"`},
		{"a:" + encoded(32) + " Plaintext", "key 2 is not of the form ID:KEY"},
		{"a:" + encoded(31), `"a" has 31 bytes; it must have 32`},
		{"a:" + encoded(33), `"a" has 33 bytes`},
		{"a:", `"a" has 0 bytes`},
		{"a:" + encoded(32) + " b:" + encoded(16), `"b" has 16 bytes`},
		{"a:" + encoded(32) + "\na:" + encoded(32), `two keys with the ID "a"`},
		{"a:" + encoded(32)[1:], `"a" is not base64`},
		{encoded(32), "key 1 is not of the form ID:KEY"},
		{"a:" + encoded(32) + " :" + encoded(32), "key 2: an ID must have"},
		{encoded(32) + ":a", "key 1: an ID must have"},
		{strings.Repeat("73", 32) + ":a", "key 1: an ID must have"},
	}
	for _, test := range tests {
		_, err := idempotency.ParseKeyRing(test.text)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v; want %s", test.text, err, test.want)
		} else if strings.Contains(err.Error(), encoded(32)[:8]) || strings.Contains(err.Error(), "7373") {
			t.Errorf("the error has the key: %v", err)
		}
	}
	for _, text := range []string{"new:" + encoded(32) + "\n old:" + encoded(32) + "\n", "a:" + encoded(32) + " plaintext", "plaintext a:" + encoded(32)} {
		if _, err := idempotency.ParseKeyRing(text); err != nil {
			t.Error(err)
		}
	}
	if _, err := idempotency.NewKeyRing("new", map[string][]byte{"old": ringKey('o')}); err == nil || !strings.Contains(err.Error(), "does not have its current key") {
		t.Errorf("without the current key: %v", err)
	}
	if _, err := idempotency.NewKeyRing("", map[string][]byte{"old": ringKey('o')}); err == nil || !strings.Contains(err.Error(), "does not have its current key") {
		t.Errorf("with an empty current key: %v", err)
	}
	if _, err := idempotency.NewKeyRing("a b", map[string][]byte{"a b": ringKey('o')}); err == nil {
		t.Error("an ID with a space is accepted")
	}
	if _, err := idempotency.New(new(dibs.Client), &idempotency.Options{KeyRing: new(idempotency.KeyRing)}); err == nil || !strings.Contains(err.Error(), "Options.KeyRing") {
		t.Errorf("an empty ring: %v", err)
	}
}

// TestKeyRingIsConcurrent is for the race detector, too.
func TestKeyRingIsConcurrent(t *testing.T) {
	r := ringOf(t, "new", "old")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			key := dibs.Key{Name: fmt.Sprint("key ", i)}
			for j := range 100 {
				record := fmt.Append(nil, "record ", i, j)
				if got, err := r.Decrypt(key, asked, r.Encrypt(key, asked, time.Hour, record)); err != nil || !bytes.Equal(got, record) {
					t.Errorf("%q came back as %q, %v", record, got, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestDuplicatesGetTheDecryptedAnswer: even if they wait in the process that runs the request.
func TestDuplicatesGetTheDecryptedAnswer(t *testing.T) {
	const duplicates = 20
	release := make(chan struct{})
	options := &idempotency.Options{KeyRing: ringOf(t, "new"), Wait: time.Minute}
	g := newRig(t, options, func(w http.ResponseWriter, r *http.Request) {
		<-release
		_, _ = fmt.Fprint(w, "the answer")
	})
	var wg sync.WaitGroup
	for range duplicates {
		wg.Go(func() {
			if w := g.send(); w.Code != 200 || w.Body.String() != "the answer" {
				t.Errorf("answered %d %q", w.Code, w.Body)
			}
		})
	}
	close(release)
	wg.Wait()
	g.ran(1)
}

// TestKeyRingWithByteOrderMark: the mark that some editors write is not part of the first ID.
func TestKeyRingWithByteOrderMark(t *testing.T) {
	const key = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	for _, text := range []string{"\ufeffa:" + key + "\r\n", "\ufeffplaintext\na:" + key} {
		if _, err := idempotency.ParseKeyRing(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}
