package serve

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/stores/httpstore"
)

// TestKeysBelongToTheirNamespace: a credential lists and changes the keys of its namespace, and
// only one that may act sees what lets it act.
func TestKeysBelongToTheirNamespace(t *testing.T) {
	s := inMemory(t)
	file := tokensFile(t, credentialLine("app", "a", "shop", "use"), credentialLine("eye", "e", "shop", "look"),
		credentialLine("hand", "h", "shop", "look,act"), credentialLine("far", "f", "-", "look,act"))
	r := start(t, s, func(c *Config) { c.Tokens = file })
	token := func(n int) string { return fmt.Sprintf("%032x", n) }
	r.do("POST", "/v1/claim", "a", `{"claims":[{"key":"k","token":"`+token(1)+`"},{"key":"k","mode":"reserve","token":"`+token(2)+`"},{"key":"r","token":"`+token(3)+`"}]}`)
	r.do("POST", "/v1/settle", "a", `{"settlements":[{"key":"r","token":"`+token(3)+`","outcome":"keep","data":"c2VjcmV0"}]}`)
	for who, want := range map[string]struct{ keys, secrets int }{"e": {2, 0}, "h": {2, 2}, "f": {0, 0}} {
		got := r.do("GET", "/v1/keys?places=true&data=true", who, "")
		if got.status != http.StatusOK {
			t.Fatalf("%s: %d %s", who, got.status, got.text)
		}
		secrets := strings.Count(got.text, `"token":"`+token(2)+`"`) + strings.Count(got.text, `"data":"c2VjcmV0"`)
		if keys := strings.Count(got.text, "\n"); keys != want.keys || secrets != want.secrets {
			t.Errorf("%s sees %d keys and %d secrets; want %+v: %s", who, keys, secrets, want, got.text)
		}
		if strings.Contains(got.text, token(1)) {
			t.Errorf("%s sees the token of a holder", who)
		}
	}
	for path, status := range map[string]int{
		"?namespace=shop": 200, "?namespace=": 403, "?namespace=other": 403, "?nonsense=1": 400, "?state=held": 200, "?state=lost": 400,
		"?key=k": 200, "?key=": 400, "?places=maybe": 400, "?key=a&key=b": 400,
	} {
		if got := r.do("GET", "/v1/keys"+path, "e", ""); got.status != status {
			t.Errorf("%s is %d %s; want %d", path, got.status, got.text, status)
		}
	}
	if got := r.do("GET", "/v1/keys?namespace=", "e", ""); !strings.Contains(got.text, `--namespace \"shop\"`) {
		t.Errorf("a list of another namespace does not name the cure: %s", got.text)
	}
	for _, order := range []string{"release", "forget", "resolve"} {
		for who, status := range map[string]int{"a": 403, "e": 403, "h": 200, "f": 200} {
			if got := r.do("POST", "/v1/keys/"+order, who, `{"key":"nothing"}`); got.status != status {
				t.Errorf("%s by %s is %d %s; want %d", order, who, got.status, got.text, status)
			}
		}
		if got := r.do("POST", "/v1/keys/"+order, "h", `{"key":"k","token":"`+token(1)+`"}`); got.status != http.StatusBadRequest {
			t.Errorf("%s with a token is %d", order, got.status)
		}
	}
	if got := r.do("POST", "/v1/keys/release", "f", `{"key":"k"}`); got.text != `{"done":0}` {
		t.Errorf("another namespace's key is released: %s", got.text)
	}
	if got := r.do("POST", "/v1/keys/release", "h", `{"key":"k"}`); got.text != `{"done":1}` {
		t.Errorf("the key is not released: %s", got.text)
	}
	if log := r.log.String(); !strings.Contains(log, "a key was changed by hand") || !strings.Contains(log, "credential=hand") || strings.Contains(log, token(1)) {
		t.Errorf("the log is %s", log)
	}

	over, err := httpstore.Open("http://:e@"+r.Listener.Addr().String(), nil)
	testkit.Must(t, err)
	defer over.Close()
	for _, err := range over.List(t.Context(), store.Query{}) {
		testkit.Check(t, err)
	}
	if _, err := over.Forget(t.Context(), dibs.Key{Namespace: "shop", Name: "r"}, ""); err == nil || !strings.Contains(err.Error(), "does not have the role act") {
		t.Errorf("a credential that may look forgets: %v", err)
	}
}
