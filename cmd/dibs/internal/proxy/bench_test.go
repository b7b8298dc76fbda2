package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/memstore"
	"github.com/dibs-go/dibs/stores/sqlitestore"
)

// BenchmarkProxy compares first requests and replays with a tuned ReverseProxy
// that guards nothing: 32 clients, a small request and a small answer.
func BenchmarkProxy(b *testing.B) {
	origin := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"id":"ch_1","amount":700,"currency":"eur","status":"succeeded"}`)
	})}
	l := benchListen(b)
	go origin.Serve(l)
	defer origin.Close()
	target := "http://" + l.Addr().String()

	b.Run("reverseproxy", func(b *testing.B) {
		u, _ := url.Parse(target)
		s := &http.Server{Handler: &httputil.ReverseProxy{
			Rewrite:    func(r *httputil.ProxyRequest) { r.SetURL(u); r.Out.Host = r.In.Host },
			Transport:  &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true},
			BufferPool: buffers,
		}}
		l := benchListen(b)
		go s.Serve(l)
		defer s.Close()
		benchClients(b, "http://"+l.Addr().String(), func(int64) string { return "" })
	})
	memory, err := memstore.New(nil)
	testkit.Must(b, err)
	file, err := sqlitestore.Open(filepath.Join(b.TempDir(), "dibs.db"), nil)
	testkit.Must(b, err)
	defer file.Close()
	for _, store := range []struct {
		name string
		dibs.Store
	}{{"memory", memory}, {"sqlite", file}} {
		addr := benchProxy(b, store.Store, target)
		b.Run("unguarded/"+store.name, func(b *testing.B) { benchClients(b, addr, func(int64) string { return "" }) })
		run := atomic.Int64{}
		b.Run("miss/"+store.name, func(b *testing.B) {
			n := strconv.FormatInt(run.Add(1), 10) + "-"
			benchClients(b, addr, func(i int64) string { return n + strconv.FormatInt(i, 10) })
		})
		b.Run("replay/"+store.name, func(b *testing.B) {
			benchClients(b, addr, func(i int64) string { return "replay-" + strconv.FormatInt(i%256, 10) })
		})
	}
}

func benchListen(b *testing.B) net.Listener {
	b.Helper()
	l := testkit.Listen(b)
	return l
}

// benchProxy starts a proxy as dibs proxy does, without its access log.
func benchProxy(b *testing.B, store dibs.Store, target string) string {
	b.Helper()
	config := defaults()
	c := &config
	c.AccessLog = false
	c.Upstream = target
	client, err := dibs.New(store, nil)
	testkit.Must(b, err)
	s, err := New(c, client, nil, slog.New(slog.DiscardHandler))
	testkit.Must(b, err)
	l := benchListen(b)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Serve(ctx, l, nil, nil) }()
	b.Cleanup(func() { cancel(); <-done; client.Close() })
	return "http://" + l.Addr().String()
}

// benchClients sends POSTs over 32 connections. The client is as light as can
// be, because it shares the processor with what is measured.
func benchClients(b *testing.B, addr string, key func(int64) string) {
	var n atomic.Int64
	b.SetParallelism(16)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		c, err := net.Dial("tcp", strings.TrimPrefix(addr, "http://"))
		if err != nil {
			b.Error(err)
			return
		}
		defer c.Close()
		r := bufio.NewReader(c)
		var out []byte
		for pb.Next() {
			out = append(out[:0], "POST /charges HTTP/1.1\r\nHost: api.example.com\r\nContent-Type: application/json\r\nContent-Length: 14\r\n"...)
			if k := key(n.Add(1)); k != "" {
				out = append(append(append(out, "Idempotency-Key: "...), k...), "\r\n"...)
			}
			out = append(out, "\r\n{\"amount\":700}"...)
			if _, err := c.Write(out); err != nil {
				b.Error(err)
				return
			}
			if err := skipAnswer(r); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
}

// skipAnswer reads an answer that has a Content-Length.
func skipAnswer(r *bufio.Reader) error {
	length := -1
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if first && !bytes.HasPrefix(line, []byte("HTTP/1.1 2")) && !bytes.HasPrefix(line, []byte("HTTP/1.1 409")) {
			return errors.New(string(line))
		}
		if rest, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(rest))); err != nil {
				return err
			}
		}
		if len(line) == 2 {
			break
		}
	}
	if length < 0 {
		return errors.New("no Content-Length")
	}
	_, err := r.Discard(length)
	return err
}
