package proxy

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestOneReading: a keyed POST is guarded, and the origin gets what the guard has read.
func TestOneReading(t *testing.T) {
	o := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	p := start(t, o.url, "routes:\n  - path: /hooks\n    key: header:X-Event\n  - path: /shop\n    for: shopify\n  - path: /any\n    for: webhook\n")
	tests := map[string]struct{ target, fields, hasNot string }{
		"two lines of Upgrade":              {"/", "Connection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n", "Upgrade"},
		"two lines, in another order":       {"/", "Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n", "Upgrade"},
		"one line with two offers":          {"/", "Connection: keep-alive\r\nConnection: upgrade\r\nUpgrade: h2c, websocket\r\n", "Upgrade"},
		"an offer of another protocol":      {"/", "Connection: Upgrade\r\nUpgrade: websocket\r\n", "Upgrade"},
		"an offer that is not a token":      {"/", "Connection: Upgrade\r\nUpgrade: w\xc3\xa9b\r\n", "Upgrade"},
		"Connection names a credential":     {"/", "Connection: X-Api-Key\r\nX-Api-Key: RANDOM\r\n", "X-Api-Key"},
		"Connection names the type":         {"/", "Connection: Content-Type\r\nContent-Type: text/RANDOM\r\n", "Content-Type"},
		"Connection names a derived key":    {"/hooks", "Connection: X-Event\r\nX-Event: KEY\r\nX_Event: RANDOM\r\n", "X_event"},
		"Connection names a sender's event": {"/shop", "Connection: X-Shopify-Event-Id\r\nX-Shopify-Event-Id: KEY\r\nX_Shopify_Event_Id: RANDOM\r\n", "X_"},
		"Connection names a sender's shop":  {"/shop", "Connection: close, X-Shopify-Shop-Domain\r\nX-Shopify-Event-Id: KEY\r\nX-Shopify-Shop-Domain: a\r\nX_shopify.Topic: RANDOM\r\n", "X_"},
		"Connection names any event":        {"/any", "Connection: X-GitHub-Delivery\r\nX-GitHub-Delivery: KEY\r\nx_github_delivery: RANDOM\r\n", "X_"},
		"a misspelt override":               {"/", "X_HTTP_Method_Override: RANDOM\r\n", "X_"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			key := strings.ReplaceAll(name, " ", "-")
			for i, random := range []string{"a", "b"} {
				fields := strings.NewReplacer("RANDOM", random, "KEY", key).Replace(test.fields)
				res, _ := send(t, p.url, "POST "+test.target+" HTTP/1.1\r\nHost: a\r\nIdempotency-Key: \""+strings.ReplaceAll(key, ",", "")+"\"\r\nContent-Length: 0\r\n"+fields+"\r\n")
				if replayed := res.Header.Get("Idempotent-Replayed") == "true"; res.StatusCode != 200 || replayed != (i == 1) {
					t.Errorf("request %d: %d, replayed %v", i, res.StatusCode, replayed)
				}
			}
			if got := o.last(); !strings.Contains(got, "Dibs-Fence") || strings.Contains(got, "\n"+test.hasNot) || strings.Contains(got, "\nConnection:") {
				t.Errorf("the origin saw %q", got)
			}
		})
	}
}

// TestOneOffer: an unguarded request's offer reaches the origin as one protocol, whatever its lines.
func TestOneOffer(t *testing.T) {
	o := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	p := start(t, o.url, "")
	for fields, want := range map[string]string{
		"Upgrade: h2c\r\nUpgrade: websocket\r\n": "\r\nUpgrade: websocket\r\n",
		"Upgrade: TLS/1.3, a/1, b\r\n":           "\r\nUpgrade: a/1\r\n",
	} {
		send(t, p.url, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n"+fields+"\r\n")
		if got := o.last(); !strings.Contains(got, want) || strings.Count(got, "Upgrade:") != 1 {
			t.Errorf("%q: the origin saw %q", fields, got)
		}
	}
}

// TestHostOfRoute: a dot at the end and capitals make no other host, so they lead around no route.
func TestHostOfRoute(t *testing.T) {
	o := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	p := start(t, o.url, "routes:\n  - host: shop.example\n    require-key: true\n  - methods: [PUT]\n    require-key: true\n")
	for _, head := range []string{
		"POST / HTTP/1.1\r\nHost: shop.example\r\n", "POST / HTTP/1.1\r\nHost: SHOP.example.\r\n",
		"POST / HTTP/1.1\r\nHost: shop.example.:81\r\n", "POST http://shop.example./ HTTP/1.1\r\nHost: other\r\n",
		"PUT / HTTP/1.1\r\nHost: other\r\n", "GET / HTTP/1.1\r\nHost: other\r\nX-HTTP-Method-Override: PUT\r\n",
	} {
		if res, _ := send(t, p.url, head+"Content-Length: 0\r\n\r\n"); res.StatusCode != 400 {
			t.Errorf("%q is answered %d; want 400", head, res.StatusCode)
		}
	}
}

// TestTheOriginDoesNotGetThePagesCookie: guarded or not, and however it is sent. Other cookies come as
// they were.
func TestTheOriginDoesNotGetThePagesCookie(t *testing.T) {
	o := origin(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, strings.Join(r.Header["Cookie"], "|"))
	})
	keys := 0
	for _, text := range []string{"", "guard: false\n"} {
		p := start(t, o, text)
		for _, test := range []struct{ sent, want []string }{
			{[]string{"dibs_page=s"}, nil},
			{[]string{"__Host-dibs_page=s"}, nil},
			{[]string{"a=1; dibs_page=s; b=2"}, []string{"a=1; b=2"}},
			{[]string{"dibs_page=s;b=2"}, []string{"b=2"}},
			{[]string{"a=1;dibs_page=s", "dibs_page=t", "c=\"x y\";  d"}, []string{"a=1", "c=\"x y\";  d"}},
			{[]string{"dibs_page=s; dibs_page=t; __Host-dibs_page=u"}, nil},
			{[]string{"dibs_page = s; x=1"}, []string{"x=1"}},
			{[]string{"my_dibs_page=1; dibs_pages=2; dibs_page"}, []string{"my_dibs_page=1; dibs_pages=2"}},
			{[]string{"a=dibs_page;  b=;"}, []string{"a=dibs_page;  b=;"}},
		} {
			for _, method := range []string{"GET", "POST"} {
				req := testkit.Request(t.Context(), t, method, p.url, nil)
				req.Header["Cookie"] = slices.Clone(test.sent)
				keys++
				req.Header.Set("Idempotency-Key", strconv.Itoa(keys))
				res, err := http.DefaultClient.Do(req)
				testkit.Must(t, err)
				body, err := io.ReadAll(res.Body)
				res.Body.Close()
				testkit.Must(t, err)
				if got, want := string(body), strings.Join(test.want, "|"); got != want {
					t.Errorf("%s with %q: the origin gets %q; want %q", method, test.sent, got, want)
				}
			}
		}
	}
}

// TestPagesInBrowsers: a page that the origin allows can send keys and read the proxy's
// refusals. Other pages cannot.
func TestPagesInBrowsers(t *testing.T) {
	const shop, other = "https://shop.example", "https://other.example"
	up := origin(t, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		if r.URL.Path == "/public" {
			h.Set("Access-Control-Allow-Origin", "*")
			return
		}
		if r.Header.Get("Origin") != shop {
			return
		}
		h.Set("Access-Control-Allow-Origin", shop)
		h.Set("Access-Control-Allow-Credentials", "true")
		if r.Method == "OPTIONS" {
			if strings.Contains(r.Header.Get("Access-Control-Request-Headers"), "idempotency") {
				w.WriteHeader(403) // as strict libraries do
				return
			}
			h.Set("Access-Control-Allow-Headers", "content-type")
			return
		}
		h.Set("Access-Control-Expose-Headers", "X-A")
		if r.URL.Path == "/broken" {
			h.Set("Content-Length", "10")
			fmt.Fprint(w, "half")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		fmt.Fprint(w, "done")
	})
	askAt := func(p *running, method, path, page, fields string) http.Header {
		t.Helper()
		res, _ := send(t, p.url, method+" "+path+" HTTP/1.1\r\nHost: a\r\nOrigin: "+page+"\r\n"+fields+"Content-Length: 0\r\n\r\n")
		return res.Header
	}
	ask := func(p *running, method, page, fields string) http.Header {
		t.Helper()
		return askAt(p, method, "/", page, fields)
	}
	expect := func(name string, h http.Header, allow, headers, expose string) {
		t.Helper()
		for field, want := range map[string]string{
			"Access-Control-Allow-Origin": allow, "Access-Control-Allow-Headers": headers, "Access-Control-Expose-Headers": expose,
		} {
			if got := h.Get(field); got != want {
				t.Errorf("%s: %s is %q, want %q", name, field, got, want)
			}
		}
	}
	const preflight = "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: content-type,idempotency-key\r\n"
	const ours = "Idempotent-Replayed, Retry-After"

	off := start(t, up, "")
	expect("switched off", ask(off, "OPTIONS", shop, preflight), shop, "", "")

	p := start(t, up, "", "--cors", shop, "--require-key")
	expect("a preflight", ask(p, "OPTIONS", shop, preflight), shop, "content-type, idempotency-key", "")
	expect("another page's preflight", ask(p, "OPTIONS", other, preflight), "", "", "")
	expect("an answer", ask(p, "POST", shop, "Idempotency-Key: k\r\n"), shop, "", "X-A, "+ours)
	expect("its replay", ask(p, "POST", shop, "Idempotency-Key: k\r\n"), shop, "", "X-A, "+ours)
	expect("a replay for another page", ask(p, "POST", other, "Idempotency-Key: k\r\n"), shop, "", "X-A")
	expect("a refusal", ask(p, "POST", shop, ""), shop, "", ours)
	if h := ask(p, "POST", shop, ""); h.Get("Access-Control-Allow-Credentials") != "true" || !strings.Contains(h.Get("Vary"), "Origin") {
		t.Errorf("a refusal has %v", h)
	}
	expect("another page's refusal", ask(p, "POST", other, ""), "", "", "")
	expect("another page's answer", ask(p, "POST", other, "Idempotency-Key: l\r\n"), "", "", "")
	expect("its replay", ask(p, "POST", other, "Idempotency-Key: l\r\n"), "", "", "")

	expect("a refusal after half an answer", askAt(p, "POST", "/broken", shop, "Idempotency-Key: broken\r\n"), shop, "", ours)
	expect("what every page may read", askAt(p, "POST", "/public", other, "Idempotency-Key: m\r\n"), "*", "", ours)
	expect("a replay for a page that may read something else", ask(p, "POST", other, "Idempotency-Key: k\r\n"), shop, "", "X-A")

	others := start(t, up, "", "--cors="+other)
	expect("an answer", ask(others, "POST", shop, "Idempotency-Key: k\r\n"), shop, "", "X-A, "+ours)
	expect("its replay for a page of the list that the origin does not allow", ask(others, "POST", other, "Idempotency-Key: k\r\n"), shop, "", "X-A")
}

// TestRequestID: the log and the origin have the client's ID if it is one short, visible value, or
// an ID that the proxy makes. That holds with a guard and without, and the client gets no field.
func TestRequestID(t *testing.T) {
	long := strings.Repeat("x", 128)
	o := newBareOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	p := start(t, o.url, "", "--log-format=json")
	tests := []struct{ fields, want string }{
		{"X-Request-Id: abc-1\r\n", "abc-1"},
		{"X-Request-Id: " + long + "\r\n", long},
		{"", ""},
		{"X-Request-Id: \r\n", ""},
		{"X-Request-Id: " + long + "x\r\n", ""},
		{"X-Request-Id: a b\r\n", ""},
		{"X-Request-Id: caf\xe9\r\n", ""},
		{"X-Request-Id: a\r\nX-Request-Id: b\r\n", ""},
		{"Connection: X-Request-Id\r\nX-Request-Id: hop\r\n", "hop"},
		{"X_Request_Id: forged\r\n", ""},
		{"Connection: Upgrade\r\nUpgrade: websocket\r\n", ""},
	}
	saw := map[string]string{}
	for i, test := range tests {
		for _, key := range []string{"", "Idempotency-Key: k\r\nContent-Length: 0\r\n"} {
			path := fmt.Sprintf("/%d/%d", i, len(key))
			res, _ := send(t, p.url, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: a%d\r\n%s%s\r\n", path, i, test.fields, key))
			_, id, _ := strings.Cut(o.last(), "X-Request-Id: ")
			saw[path], _, _ = strings.Cut(id, "\r\n")
			if len(res.Header["X-Request-Id"]) != 0 || strings.Count(strings.ToLower(o.last()), "request") != 1 {
				t.Errorf("%q: the origin got %q, and the client %v", test.fields, o.last(), res.Header)
			}
		}
	}
	p.stop()
	logged := map[string]string{}
	for _, l := range linesOf(t, p.logs.String(), "request") {
		logged[l["path"].(string)] = l["request_id"].(string)
	}
	for i, test := range tests {
		for path, got := range saw {
			if !strings.HasPrefix(path, fmt.Sprintf("/%d/", i)) {
				continue
			}
			id, want := logged[path], test.want
			if got != id || want != "" && id != want || want == "" && (len(id) < 16 || strings.Contains(test.fields, id)) {
				t.Errorf("%s %q: the log has %q, and the origin got %q", path, test.fields, id, got)
			}
		}
	}
}
