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

// TestActions: each does what its sentence says, once, and leaves a line in the log with who did it
// and without the key.
func TestActions(t *testing.T) {
	r := start(t, false)
	secret := store.Key{Name: "http:GQ0p0hV7Hq3b8QkHn1oSLg:secret-order"}
	done := func(path, body string) int {
		t.Helper()
		var d struct{ Done int }
		resp, text := r.do("POST", "/page/"+path, "actor", body)
		testkit.Check(t, json.Unmarshal([]byte(text), &d))
		if resp.StatusCode != 200 {
			t.Errorf("%s %s is %d %s", path, body, resp.StatusCode, text)
		}
		return d.Done
	}
	link := `"link":"` + linkOf(secret) + `"`

	waiter := store.NewToken()
	r.claim(store.Claim{Key: secret}, store.Claim{Key: secret, Token: waiter, Mode: store.Queue, PlaceTTL: time.Hour})
	if n := done("release", `{`+link+`,"id":"`+r.look(secret).Runs[0].ID+`"}`); n != 1 {
		t.Errorf("the release has ended %d attempts", n)
	}
	r.claim(store.Claim{Key: secret, Token: waiter, Mode: store.Queue, PlaceTTL: time.Hour})
	if a := r.look(secret).Runs; len(a) != 1 || a[0].ID != waiter.ID() {
		t.Errorf("after the release the holder is %+v; want the waiter", a)
	}
	if n := done("release", `{`+link+`,"id":"aaaaaaaaaaaaaaaa"}`); n != 0 {
		t.Errorf("the release of another attempt has ended %d", n)
	}
	done("release", `{`+link+`,"id":"`+waiter.ID()+`"}`)
	for _, path := range []string{"release", "forget", "resolve"} {
		if resp, text := r.do("POST", "/page/"+path, "actor", `{`+link+`,"status":200}`); resp.StatusCode != 422 {
			t.Errorf("%s without an ID is %d %s", path, resp.StatusCode, text)
		}
	}

	id := r.unknown(secret)
	if n := r.first("actor"); n.Unknown != 1 || len(n.Undecided) != 1 || !n.Undecided[0].HTTP || n.Undecided[0].Runs[0].ID != id {
		t.Errorf("the news of an unknown outcome are %+v", n)
	}
	for _, wrong := range []string{`{` + link + `,"id":"` + id + `"}`, `{` + link + `,"id":"` + id + `","status":600}`, `{` + link + `,"id":"` + id + `","status":204,"body":"x"}`} {
		if resp, text := r.do("POST", "/page/resolve", "actor", wrong); resp.StatusCode != 422 {
			t.Errorf("settling with %s is %d %s", wrong, resp.StatusCode, text)
		}
	}
	resolve := `{` + link + `,"id":"` + id + `","status":201,"type":"application/json","body":"{\"secret\":1}"}`
	if n := done("resolve", resolve); n != 1 {
		t.Errorf("settling has done %d", n)
	}
	a, err := idempotency.DecodeAnswer(r.look(secret).Record.Data, 1<<20)
	testkit.Must(t, err)
	if a.Status != 201 || string(a.Body) != `{"secret":1}` || a.Header.Get("Content-Type") != "application/json" {
		t.Errorf("the stored answer is %+v", a)
	}
	if n := done("resolve", resolve); n != 0 {
		t.Errorf("settling twice has done %d", n)
	}
	if _, text := r.do("GET", "/page/key?"+linkOf(secret), "looker", ""); !strings.Contains(text, `"status":201`) || strings.Contains(text, "secret\\") || strings.Contains(text, `"data"`) {
		t.Errorf("the page of the key is %s; want the status without the body", text)
	}
	if n := done("forget", `{`+link+`,"id":"`+id+`"}`); n != 1 || r.look(secret).Condition != "free" {
		t.Errorf("forgetting has done %d, and the key is %s", n, r.look(secret).Condition)
	}
	id = r.unknown(secret)
	if n := done("release", `{`+link+`,"id":"`+id+`"}`); n != 1 || r.look(secret).Condition != "free" {
		t.Errorf("letting it run again has done %d, and the key is %s", n, r.look(secret).Condition)
	}

	call := store.Key{Name: "mcp:GQ0p0hV7Hq3b8QkHn1oSLg:secret-order"}
	id = r.unknown(call)
	order := `{"link":"` + linkOf(call) + `","id":"` + id + `","status":200,"body":`
	if resp, text := r.do("POST", "/page/resolve", "actor", order+`"charge 1"}`); resp.StatusCode != 422 || !strings.Contains(text, "response of JSON-RPC") {
		t.Errorf("an answer to a call that is not a response is %d %s", resp.StatusCode, text)
	}
	if n := done("resolve", order+`"{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":{}}"}`); n != 1 {
		t.Errorf("settling a call has done %d", n)
	}

	plain := store.Key{Name: "plain"}
	id = r.unknown(plain)
	if resp, _ := r.do("POST", "/page/resolve", "actor", `{"link":"`+linkOf(plain)+`","id":"`+id+`","status":200}`); resp.StatusCode != 422 {
		t.Errorf("an answer for a key that is not a request's is %d", resp.StatusCode)
	}

	lines := r.log.With("a key was changed by hand")
	if len(lines) != 8 {
		t.Errorf("there are %d lines of 8 actions: %s", len(lines), r.log.String())
	}
	for _, l := range lines {
		if !strings.Contains(l, "viewer=Ada") || !strings.Contains(l, "key="+secret.Digest()) && !strings.Contains(l, "key="+call.Digest()) || !strings.Contains(l, "action=/page/") {
			t.Errorf("a line is %s", l)
		}
	}
	if strings.Contains(r.log.String(), "secret") {
		t.Error("the key or the answer is in the log")
	}
}

// TestActsOnWhatWasShown: an old page does nothing to what came after it.
func TestActsOnWhatWasShown(t *testing.T) {
	r := start(t, false)
	k := store.Key{Name: "http:GQ0p0hV7Hq3b8QkHn1oSLg:order-17"}
	act := func(path, id string) string {
		resp, text := r.do("POST", "/page/"+path, "actor", `{"link":"`+linkOf(k)+`","id":"`+id+`","status":200}`)
		return resp.Status + " " + text
	}
	token := store.NewToken()
	r.claim(store.Claim{Key: k, Token: token})
	testkit.Must(t, r.store.Settle(t.Context(), []store.Settlement{{Key: k, Token: token, Outcome: store.Keep, Retention: time.Hour}}, make([]error, 1)))
	id := r.unknown(k) // a claim that the record did not answer
	for _, path := range []string{"release", "resolve"} {
		if got := act(path, token.ID()); got != "200 OK {\"done\":0}\n" {
			t.Errorf("%s of the attempt that left the record is %s", path, got)
		}
	}
	if got := act("forget", token.ID()); got != "200 OK {\"done\":1}\n" {
		t.Errorf("forgetting the record is %s", got)
	}
	if got := act("forget", token.ID()); got != "200 OK {\"done\":0}\n" {
		t.Errorf("forgetting the record again is %s", got)
	}
	if e := r.look(k); e.Condition != store.ConditionUnknown || e.Runs[0].ID != id || e.Record != nil {
		t.Errorf("after that the key is %+v; want the unknown outcome", e)
	}
}

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
