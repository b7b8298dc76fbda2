package proxy

import (
	"strings"
	"testing"
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
