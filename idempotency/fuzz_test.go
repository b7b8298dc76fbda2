package idempotency

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/content"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// FuzzDecodeAnswer: any bytes decode or fail, within bounds, and what decodes
// survives being stored again.
func FuzzDecodeAnswer(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 2\r\n\r\nhi"))
	f.Add(deflate([]byte("HTTP/1.1 200 OK\r\nContent-Length: 8000\r\n\r\n" + strings.Repeat("abcd", 2000))))
	f.Fuzz(func(t *testing.T, record []byte) {
		const limit = 1 << 16
		a, err := DecodeAnswer(record, limit)
		if err != nil {
			if !errors.Is(err, ErrRecord) {
				t.Errorf("not ErrRecord: %v", err)
			}
			return
		}
		if len(a.Body) > limit {
			t.Errorf("%d bytes of body; at most %d", len(a.Body), limit)
		}
		if a.Status > 599 || a.NotKept {
			return
		}
		stored := &Answer{Status: a.Status, Header: storable(a.Header), Body: a.Body, Trailer: storable(a.Trailer)}
		again, err := EncodeAnswer("http:", a)
		testkit.Must(t, err)
		b, err := DecodeAnswer(again, 4*limit)
		testkit.Must(t, err)
		same(t, b, stored)
	})
}

// storable is h without what is never stored.
func storable(h http.Header) http.Header { return new(Options).stored(h, h["Connection"]) }

// same compares two answers.
func same(t *testing.T, got, want *Answer) {
	t.Helper()
	if got.Status != want.Status || !bytes.Equal(got.Body, want.Body) {
		t.Errorf("%d with %d bytes; want %d with %d", got.Status, len(got.Body), want.Status, len(want.Body))
	}
	for _, h := range [][2]http.Header{{got.Header, want.Header}, {got.Trailer, want.Trailer}} {
		if len(h[0]) != len(h[1]) || len(h[0]) > 0 && !reflect.DeepEqual(h[0], h[1]) {
			t.Errorf("header %q; want %q", h[0], h[1])
		}
	}
}

// FuzzEncodeAnswer: what is stored comes back.
func FuzzEncodeAnswer(f *testing.F) {
	f.Add(200, "X-A", "b", []byte("body"), "X-Sum", "1")
	f.Add(204, "X-A", "b", []byte("body"), "", "")
	f.Add(201, "X-A", "b", bytes.Repeat([]byte("long "), 900), "", "")
	f.Fuzz(func(t *testing.T, status int, name, value string, body []byte, trailer, sum string) {
		a := &Answer{Status: status, Header: http.Header{name: {value, value}}, Body: body}
		if trailer != "" {
			a.Trailer = http.Header{trailer: {sum}}
		}
		record, err := EncodeAnswer("http:", a)
		if err != nil {
			if status >= 200 && status <= 599 && (len(body) == 0 || status != 204 && status != 304) {
				t.Error(err)
			}
			return
		}
		got, err := DecodeAnswer(record, 0)
		testkit.Must(t, err)
		clean := func(h http.Header) http.Header {
			out := make(http.Header)
			for name, values := range new(Options).stored(h, a.Header["Connection"]) {
				for _, v := range values {
					v = strings.NewReplacer("\r", " ", "\n", " ").Replace(v)
					name := http.CanonicalHeaderKey(name)
					out[name] = append(out[name], textproto.TrimString(v))
				}
			}
			return out
		}
		same(t, got, &Answer{Status: status, Header: clean(a.Header), Body: body, Trailer: clean(a.Trailer)})
	})
}

// printOf returns the fingerprint of a request with that body.
func printOf(t *testing.T, o *FingerprintOptions, target, contentType string, text []byte, memory int64) dibs.Fingerprint {
	t.Helper()
	options := (&Options{maxMemory: memory, Fingerprint: *o}).withDefaults(dibs.Options{})
	r := &http.Request{Method: http.MethodPost, RequestURI: target, URL: &url.URL{Path: "/"}, Header: http.Header{"Content-Type": {contentType}},
		Body: io.NopCloser(bytes.NewReader(text)), ContentLength: -1}
	var b body
	defer b.remove()
	testkit.Must(t, b.read(httptest.NewRecorder(), r, &options))
	p, err := options.Fingerprint.of(r, &b)
	testkit.Must(t, err)
	return p
}

// FuzzFingerprint: as sent, two requests have one fingerprint only if they are
// the same; in canonical form, JSON has one fingerprint exactly if it has one
// meaning.
func FuzzFingerprint(f *testing.F) {
	f.Add("/a?b=1", "/a?b=1", []byte(`{"a":1,"b":[1.0,"x"]}`), []byte(`{"b":[1.0,"\u0078"], "a":1}`))
	f.Fuzz(func(t *testing.T, targetA, targetB string, a, b []byte) {
		if len(a) > 1<<16 || len(b) > 1<<16 {
			return
		}
		const contentType = "application/json"
		var sent FingerprintOptions
		pa, pb := printOf(t, &sent, targetA, contentType, a, 8), printOf(t, &sent, targetA, contentType, b, 1<<20)
		if (pa == pb) != bytes.Equal(a, b) {
			t.Errorf("bodies %q and %q: same fingerprint %v", a, b, pa == pb)
		}
		if strings.HasPrefix(targetA, "/") && strings.HasPrefix(targetB, "/") {
			if ta := printOf(t, &sent, targetB, contentType, a, 1<<20); (pa == ta) != (targetA == targetB) {
				t.Errorf("targets %q and %q: same fingerprint %v", targetA, targetB, pa == ta)
			}
		}
		canonical := FingerprintOptions{CanonicalJSON: true, SortQuery: true}
		ca, cb := printOf(t, &canonical, targetA, contentType, a, 8), printOf(t, &canonical, targetA, contentType, b, 1<<20)
		if pa == pb && ca != cb {
			t.Errorf("%q has two canonical fingerprints", a)
		}
		_, errA := content.CanonicalJSON(content.Of(a))
		_, errB := content.CanonicalJSON(content.Of(b))
		switch {
		case errA == nil && errB == nil:
			if (ca == cb) != reflect.DeepEqual(meaning(t, a), meaning(t, b)) {
				t.Errorf("%q and %q: same fingerprint %v", a, b, ca == cb)
			}
		case ca == cb && !bytes.Equal(a, b):
			t.Errorf("%q and %q have one fingerprint, and one has no canonical form", a, b)
		}
	})
}

func meaning(t *testing.T, text []byte) any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%q has a canonical form and is not JSON: %v", text, err)
	}
	return byValue(v)
}

// byValue replaces each number of a document by its value. A number with a long exponent stays.
func byValue(v any) any {
	switch v := v.(type) {
	case json.Number:
		_, exponent, _ := strings.Cut(strings.ToLower(string(v)), "e")
		if len(exponent) > 4 {
			return json.Number(content.Number(string(v)))
		}
		n, _ := new(big.Rat).SetString(string(v))
		return n.String()
	case []any:
		for i := range v {
			v[i] = byValue(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = byValue(v[name])
		}
	}
	return v
}

func TestParseSeconds(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "1": time.Second, "00060": time.Minute,
		"315360000": MaxRetention, "315360001": MaxRetention, strings.Repeat("9", 100): MaxRetention,
	} {
		if got, ok := parseSeconds(text); !ok || got != want {
			t.Errorf("parseSeconds(%q) = %v, %v; want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "-1", "+1", "1.5", " 1", "1s", "0x1"} {
		if got, ok := parseSeconds(text); ok {
			t.Errorf("parseSeconds(%q) = %v", text, got)
		}
	}
}

// TestInflateIsBounded: a small record cannot become a large answer.
func TestInflateIsBounded(t *testing.T) {
	message := append([]byte("HTTP/1.1 200 OK\r\nContent-Length: 4194304\r\n\r\n"), make([]byte, 4<<20)...)
	bomb := deflate(message)
	if len(bomb) > 1<<20 {
		t.Fatalf("the bomb has %d bytes", len(bomb))
	}
	if _, err := DecodeAnswer(bomb, 1<<20); !errors.Is(err, ErrRecord) {
		t.Errorf("a bomb decodes: %v", err)
	}
	if a, err := DecodeAnswer(bomb, 5<<20); err != nil || len(a.Body) != 4<<20 {
		t.Errorf("with room for it: %v", err)
	}
}

// FuzzParseKeyRing: any text is a ring or is refused, and what a ring encrypts it decrypts.
func FuzzParseKeyRing(f *testing.F) {
	key := strings.Repeat("a2V5", 10) + "a2U="
	f.Add("")
	f.Add("a:" + key)
	f.Add("plaintext\na:" + key + "\nb:" + key)
	f.Fuzz(func(t *testing.T, text string) {
		ring, err := ParseKeyRing(text)
		if err != nil {
			return
		}
		under := dibs.Key{Namespace: "shop", Name: "k"}
		encrypted := ring.Encrypt(under, dibs.Fingerprint{1}, time.Hour, []byte("HTTP/"))
		if got, err := ring.Decrypt(under, dibs.Fingerprint{1}, encrypted); err != nil || string(got) != "HTTP/" {
			t.Errorf("came back as %q, %v", got, err)
		}
	})
}

// FuzzDecrypt: a ring refuses any bytes. If it has Plaintext, it refuses those that look encrypted.
func FuzzDecrypt(f *testing.F) {
	strict, err := NewKeyRing("a", map[string][]byte{"a": make([]byte, 32)})
	testkit.Must(f, err)
	loose, err := NewKeyRing("a", map[string][]byte{"a": make([]byte, 32), Plaintext: nil})
	testkit.Must(f, err)
	f.Add([]byte("GCM/a/9999999999\n"))
	f.Add([]byte("GCM/a/9999999999\n0123456789ab0123456789abcdef"))
	f.Add([]byte("GCM/b/1\n"))
	f.Fuzz(func(t *testing.T, record []byte) {
		_, encrypted := EncryptedWith(record)
		if _, err := loose.Decrypt(dibs.Key{Name: "k"}, dibs.Fingerprint{}, record); encrypted != errors.Is(err, ErrRecord) {
			t.Errorf("encrypted: %v; %v", encrypted, err)
		}
		if _, err := strict.Decrypt(dibs.Key{Name: "k"}, dibs.Fingerprint{}, record); !errors.Is(err, ErrRecord) {
			t.Errorf("without Plaintext: %v", err)
		}
	})
}
