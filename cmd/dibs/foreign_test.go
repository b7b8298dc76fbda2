//go:build nightly

package main

import (
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/wire"
)

// TestForeign: webdis, an HTTP API in C before Redis, is the origin. The clients retry on
// their own: curl, and Python's urllib3. The answer is lost twice, and the effect happens
// once. Without dibs it happens three times.
func TestForeign(t *testing.T) {
	t.Parallel()
	webdis := startWebdis(t)
	p := startProxy(t, webdis, sqliteStore(t))
	bare := servertest.NewWire(t, strings.TrimPrefix(webdis, "http://"))
	guarded := servertest.NewWire(t, strings.TrimPrefix(p.url, "http://"))
	clients := []struct {
		name string
		send func(t *testing.T, url, key, body string) string
	}{
		{"curl", curl},
		{"urllib3", urllib3},
	}
	for _, client := range clients {
		t.Run(client.name, func(t *testing.T) {
			bare.Set(wire.Trouble{LoseReply: 2}, nil)
			if got := client.send(t, "http://"+bare.Addr()+"/", `"a"`, "INCR/bare-"+client.name); got != `{"INCR":3}` {
				t.Errorf("bare, the client got %s", got)
			}
			guarded.Set(wire.Trouble{LoseReply: 2}, nil)
			lost := guarded.Counts().LostReplies
			if got := client.send(t, "http://"+guarded.Addr()+"/", `"`+client.name+`"`, "INCR/"+client.name); got != `{"INCR":1}` {
				t.Errorf("with dibs, the client got %s", got)
			}
			if n := guarded.Counts().LostReplies - lost; n != 2 {
				t.Errorf("%d answers were lost; want 2", n)
			}
			if got := askWebdis(t, webdis+"/GET/"+client.name); got != `{"GET":"1"}` {
				t.Errorf("the origin's own count is %s", got)
			}
			if got := client.send(t, "http://"+guarded.Addr()+"/", `"`+client.name+`-2"`, "INCR/"+client.name); got != `{"INCR":2}` {
				t.Errorf("under another key, the client got %s", got)
			}
		})
	}
}
