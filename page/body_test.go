package page

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/oncerecord"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/internal/runrecord"
	"github.com/dibs-go/dibs/store"
)

// record stores a record of a key.
func (r *rig) record(key store.Key, data []byte) {
	r.t.Helper()
	token := store.NewToken()
	r.claim(store.Claim{Key: key, Token: token})
	testkit.Must(r.t, r.store.Settle(r.t.Context(), []store.Settlement{{Key: key, Token: token, Outcome: store.Keep, Data: data, Retention: time.Hour}}, make([]error, 1)))
}

// TestBodies: the body of a record is shown with the option only, and to those who may act. It is text whose
// characters are all visible. Of the headers only Content-Type is shown.
func TestBodies(t *testing.T) {
	r := start(t, false)
	key := store.Key{Name: "http:GQ0p0hV7Hq3b8QkHn1oSLg:order-17"}
	data, err := idempotency.EncodeAnswer(key.Name, &idempotency.Answer{
		Status: 201, Body: []byte("{\n\t\"id\": 17, \"text\": \"<b>\u202e\x00\"}"),
		Header: http.Header{"Content-Type": {"application/json"}, "Set-Cookie": {"session=secret"}, "Authorization": {"Bearer secret"}, "X-Api-Key": {"secret"}},
	})
	testkit.Must(t, err)
	r.record(key, data)
	show := func(token string) (l line, text string) {
		t.Helper()
		_, text = r.do("GET", "/page/key?"+linkOf(key), token, "")
		testkit.Must(t, json.Unmarshal([]byte(text), &l))
		return l, text
	}
	if l, text := show("actor"); l.Status != 201 || l.Body != nil || strings.Contains(text, "17,") {
		t.Errorf("without the option it shows %s", text)
	}
	r.page.options.ShowBodies = true
	if l, text := show("looker"); l.Status != 201 || l.Body != nil || strings.Contains(text, "17,") {
		t.Errorf("to a viewer who may look it shows %s", text)
	}
	l, text := show("actor")
	if l.Status != 201 || l.Body == nil || l.Body.Type != "application/json" || l.Body.Text != "{\n\t\"id\": 17, \"text\": \"<b>\\u202e\\x00\"}" {
		t.Errorf("it shows %s", text)
	}
	if strings.Contains(text, "secret") {
		t.Errorf("it shows a credential: %s", text)
	}
}

// TestBodyOf: what is not text, too long or encrypted is not shown, and the page says why.
func TestBodyOf(t *testing.T) {
	long := strings.Repeat("ü", maxBody)
	for _, of := range []struct {
		answer *idempotency.Answer
		data   string
		want   body
	}{
		{nil, "result 7", body{Text: "result 7", Bytes: 8}},
		{nil, "", body{}},
		{nil, "\xff\xfe", body{Bytes: 2, Hidden: "It is not text."}},
		{nil, "x" + long, body{Text: "x" + long[:maxBody-2], Bytes: 1 + len(long), Cut: true}},
		{&idempotency.Answer{Header: http.Header{"Content-Encoding": {"gzip"}}, Body: []byte("zip")}, "", body{Bytes: 3, Hidden: "It is compressed."}},
	} {
		if got := bodyOf(of.answer, []byte(of.data)); *got != of.want {
			t.Errorf("%.20q is shown as %+v; want %+v", of.data, *got, of.want)
		}
	}
	r := start(t, true)
	r.page.options.ShowBodies = true
	key := store.Key{Name: "http:GQ0p0hV7Hq3b8QkHn1oSLg:k"}
	r.record(key, []byte("of another program"))
	if _, text := r.do("GET", "/page/key?"+linkOf(key), "", ""); !strings.Contains(text, "not an answer that this version can read") {
		t.Errorf("a foreign record is shown as %s", text)
	}
}

// TestRun: who may look sees how a run of dibs run ended, on which host and when, without the
// record's body.
func TestRun(t *testing.T) {
	r := start(t, false)
	key, other := store.Key{Name: "nightly-report"}, store.Key{Name: "receipt"}
	data, err := runrecord.Run{Command: "report.sh", Host: "worker\u202e1", Began: time.Unix(0, 0), TookMS: 1500, Exit: 3}.Record()
	testkit.Must(t, err)
	r.record(key, data)
	r.record(other, []byte(`{"host":"worker-1"}`))
	want := `"run":{"succeeded":false,"exit":3,"host":"worker\\u202e1","command":"report.sh","began":"1970-01-01T00:00:00Z","took_ms":1500}`
	if _, text := r.do("GET", "/page/key?"+linkOf(key), "looker", ""); !strings.Contains(text, want) || strings.Contains(text, `"body"`) {
		t.Errorf("the page of the key is %s; want %s", text, want)
	}
	if _, text := r.do("GET", "/page/key?"+linkOf(other), "looker", ""); strings.Contains(text, "worker") {
		t.Errorf("the page of another program's record is %s", text)
	}
}

// TestNotKept: why a result was not stored is the text of an error, which can have what the result had. So
// only those who may act see it.
func TestNotKept(t *testing.T) {
	r := start(t, false)
	key := store.Key{Name: "nightly-report"}
	r.record(key, oncerecord.NotKept(errors.New("secret is too large")))
	for viewer, want := range map[string]bool{"actor": true, "looker": false} {
		if _, text := r.do("GET", "/page/key?"+linkOf(key), viewer, ""); strings.Contains(text, `"not_kept":"secret is too large"`) != want {
			t.Errorf("the %s gets %s", viewer, text)
		}
		if _, text := r.do("GET", "/page/search?q=nightly", viewer, ""); strings.Contains(text, "secret") {
			t.Errorf("the %s finds %s", viewer, text)
		}
	}
}
