package idempotency_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/idempotency"
)

// TestDerivedKeys: each KeyFunc finds the key, none, or refuses the request.
func TestDerivedKeys(t *testing.T) {
	form := with("Content-Type", "application/x-www-form-urlencoded")
	several := idempotency.KeyOf(idempotency.KeyHeader("X-Source"), idempotency.KeyJSON("id"))
	either := idempotency.KeyFirst(idempotency.KeyHeader("X-Event"), idempotency.KeyJSON("id"), idempotency.KeyForm("id"))
	long := strings.Repeat("x", 200)
	for name, test := range map[string]struct {
		key  idempotency.KeyFunc
		sent []change
		want string // "": none; "!": refused
	}{
		"member":                {idempotency.KeyJSON("id"), []change{withBody(`{"id":"a"}`)}, "a"},
		"number":                {idempotency.KeyJSON("id"), []change{withBody(`{"id":1.0}`)}, "1.0"},
		"pointer":               {idempotency.KeyJSON("/a/0/id"), []change{withBody(`{"a":[{"id":"x"}]}`)}, "x"},
		"pointer into an array": {idempotency.KeyJSON("/1/id"), []change{withBody(`[{"id":"x"},{"id":"y"}]`)}, "y"},
		"array":                 {idempotency.KeyJSON("id"), []change{withBody(`[{"id":"x"},{"id":"y"}]`)}, "x,y"},
		"array, one lacks it":   {idempotency.KeyJSON("id"), []change{withBody(`[{"id":"x"},{}]`)}, ""},
		"list":                  {idempotency.KeyJSON("ids"), []change{withBody(`{"ids":["x,y",2]}`)}, "x%2Cy,2"},
		"one, with a comma":     {idempotency.KeyJSON("id"), []change{withBody(`{"id":"x,y"}`)}, "x%2Cy"},
		"empty array":           {idempotency.KeyJSON("id"), []change{withBody(`[]`)}, ""},
		"object":                {idempotency.KeyJSON("id"), []change{withBody(`{"id":{}}`)}, "!"},
		"empty":                 {idempotency.KeyJSON("id"), []change{withBody(`{"id":""}`)}, "!"},
		"no JSON":               {idempotency.KeyJSON("id"), []change{withBody(`id`)}, ""},
		"several documents":     {idempotency.KeyJSON("id"), []change{withBody(`{"id":1}` + "\n" + `{"id":2}`)}, ""},
		"compressed":            {idempotency.KeyJSON("id"), compressed(t, `{"id":"a"}`, time.Unix(1, 0)), "a"},
		"compressed, longest":   {idempotency.KeyJSON("id"), compressed(t, `{"id":"a"}`+strings.Repeat(" ", 256<<10-10), time.Unix(1, 0)), "a"},
		"compressed, too long":  {idempotency.KeyJSON("id"), compressed(t, `{"id":"a"}`+strings.Repeat(" ", 256<<10-9), time.Unix(1, 0)), "!"},
		"compressed, damaged":   {idempotency.KeyJSON("id"), []change{with("Content-Encoding", "gzip"), withBody(`{"id":"a"}`)}, ""},
		"twice":                 {idempotency.KeyJSON("id"), []change{withBody(`{"id":"a","id":"b"}`)}, "!"},
		"twice, deep":           {idempotency.KeyJSON("/a/id"), []change{withBody(`{"a":{"id":"a"},"a":{"id":"b"}}`)}, "!"},
		"another member twice":  {idempotency.KeyJSON("id"), []change{withBody(`{"b":{"id":1},"id":"a","b":2}`)}, "a"},
		"broken after it":       {idempotency.KeyJSON("id"), []change{withBody(`{"id":"a","b":]}`)}, ""},
		"too many values":       {idempotency.KeyJSON("id"), []change{withBody(`{"id":[` + strings.Repeat("1,", 10000) + `1]}`)}, "!"},
		"the most values":       {idempotency.KeyJSON("id"), []change{withBody(`{"id":[` + strings.Repeat("1,", 9999) + `1]}`)}, "sha256:"},
		"too deep":              {idempotency.KeyJSON("id"), []change{withBody(`{"id":"a","b":` + strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20) + `}`)}, ""},
		"long, not compressed":  {idempotency.KeyJSON("id"), []change{withBody(`{"id":"a"}` + strings.Repeat(" ", 8<<20))}, "a"},
		"compressed strangely":  {idempotency.KeyJSON("id"), []change{with("Content-Encoding", "br"), withBody(`{"id":"a"}`)}, ""},
		"form":                  {idempotency.KeyForm("id"), []change{form, withBody("a=b&id=c%2Fd")}, "c/d"},
		"form, compressed":      {idempotency.KeyForm("id"), append(compressed(t, "id=a", time.Unix(1, 0)), form), "a"},
		"form, too many fields": {idempotency.KeyForm("id"), []change{form, withBody("id=a" + strings.Repeat("&b", 10000))}, "!"},
		"form, the most fields": {idempotency.KeyForm("id"), []change{form, withBody("id=a" + strings.Repeat("&b", 9999))}, "a"},
		"form, long value":      {idempotency.KeyForm("id"), []change{form, withBody("a=" + strings.Repeat("b", 1<<20) + "&id=a")}, "a"},
		"form, malformed":       {idempotency.KeyForm("id"), []change{form, withBody("id=a&b=%")}, ""},
		"form, a semicolon":     {idempotency.KeyForm("id"), []change{form, withBody("id=a&b;c")}, ""},
		"form, escaped name":    {idempotency.KeyForm("id"), []change{form, withBody("%69d=a+b&&c")}, "a b"},
		"form, without it":      {idempotency.KeyForm("id"), []change{form, withBody("a=b")}, ""},
		"form, twice":           {idempotency.KeyForm("id"), []change{form, withBody("id=a&id=b")}, "!"},
		"no form":               {idempotency.KeyForm("id"), []change{withBody("id=a")}, ""},
		"several":               {several, []change{with("X-Source", "s"), withBody(`{"id":"a"}`)}, "s,a"},
		"several, with a comma": {several, []change{with("X-Source", "s,a"), withBody(`{"id":"b"}`)}, "s%2Ca,b"},
		"several, without one":  {several, []change{with("X-Source", "s"), withBody(`{}`)}, ""},
		"several, too long":     {several, []change{with("X-Source", long), withBody(`{"id":"` + long + `"}`)}, "sha256:"},
		"the first of several":  {either, []change{with("X-Event", "e"), withBody(`{"id":"a"}`)}, "e"},
		"the second of several": {either, []change{withBody(`{"id":"a"}`)}, "a"},
		"the third of several":  {either, []change{form, withBody("id=a")}, "a"},
		"none of several":       {either, []change{withBody("a")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got string
			g := newRig(t, &idempotency.Options{Key: test.key, MaxBody: 16 << 20}, func(w http.ResponseWriter, r *http.Request) {
				if lease, ok := leaseOf(r); ok {
					got, _ = idempotency.KeyPart(lease.Key().Name)
				}
			})
			w := g.send(append(test.sent, with("Idempotency-Key"))...)
			if w.Code != 200 {
				got = "!"
			}
			if got != test.want && (test.want != "sha256:" || !strings.HasPrefix(got, test.want)) {
				t.Errorf("the key is %q, want %q", got, test.want)
			}
		})
	}
}

// TestOneEventForTwoEndpoints: an event runs once at each path.
func TestOneEventForTwoEndpoints(t *testing.T) {
	for name, o := range map[string]*idempotency.Options{
		"header": {Key: idempotency.KeyHeader("Webhook-Id")},
		"JSON":   {Key: idempotency.KeyJSON("id")},
		"preset": webhooks(t, idempotency.AnySender),
	} {
		g := newRig(t, o, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Path) })
		for range 2 {
			for _, path := range []string{"/orders", "/mails"} {
				w := g.send(withTarget(path+"?a=b"), with("Idempotency-Key"), with("Webhook-Id", "e1"), withBody(`{"id":"e1"}`))
				if w.Code != 200 || w.Body.String() != path {
					t.Errorf("%s: %s was answered %d %s", name, path, w.Code, w.Body)
				}
			}
		}
		g.ran(2)
	}
}

// TestKeylessRequestsAreLogged: there is one warning, which quotes nothing of the request.
func TestKeylessRequestsAreLogged(t *testing.T) {
	log, logger := newLogger()
	g := newRig(t, &idempotency.Options{Key: idempotency.KeyJSON("id"), Logger: logger}, nil)
	for range 3 {
		g.send(with("Idempotency-Key"), withBody(`{"secret":1}`))
	}
	if text := log.String(); strings.Count(text, "without the key that Options.Key looks for") != 1 || strings.Contains(text, "secret") {
		t.Errorf("the log is\n%s", text)
	}
}
