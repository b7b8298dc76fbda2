package idempotency_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/idempotency"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

var rpcRules = []rule{
	{"The status of gRPC or Connect counts", failuresOfRPCAreNotKept},
	{"A deadline ends the client's wait, not the run", deadlinesOfClientsDoNotReachTheHandler},
	{"Refusals are in the protocol", refusalsInTheProtocolAskedIn},
	{"Refusals are in the protocol", refusalsOfGRPCAreTrailersAlone},
	{"Client streams are refused", streamsAreRefused},
	{"Client streams are refused", streamsThatGoOnAreRefused},
}

// frameOf is a message of gRPC or Connect.
func frameOf(flags byte, text string) string {
	return string(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(text)))) + text
}

// failuresOfRPCAreNotKept: the status of gRPC and of Connect counts, not that of HTTP.
func failuresOfRPCAreNotKept(t *testing.T) {
	trailer := func(code string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/grpc+proto")
			_, _ = io.WriteString(w, frameOf(0, "x"))
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", code)
		}
	}
	alone := func(media, code string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", media)
			w.Header().Set("Grpc-Status", code)
		}
	}
	body := func(media, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", media)
			_, _ = io.WriteString(w, text)
		}
	}
	// zipped is body with its last frame compressed, as connect-go does for clients that can
	// read that.
	zipped := func(media, field, encoding string, flag byte, text string) http.HandlerFunc {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = io.WriteString(z, text)
		_ = z.Close()
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(field, encoding)
			body(media, frameOf(0, "x")+frameOf(flag|1, b.String()))(w, r)
		}
	}
	unary := func(status int, encoding, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if encoding != "" {
				var b bytes.Buffer
				z := gzip.NewWriter(&b)
				_, _ = io.WriteString(z, text)
				_ = z.Close()
				w.Header().Set("Content-Encoding", encoding)
				text = b.String()
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text)
		}
	}
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		kept    bool
	}{
		"Connect, OK":                      {unary(200, "", `{"code":"unavailable"}`), true},
		"Connect, ALREADY_EXISTS":          {unary(409, "", `{"code":"already_exists"}`), true},
		"Connect, ALREADY_EXISTS, gzip":    {unary(409, "gzip", `{"code":"already_exists"}`), true},
		"Connect, ABORTED":                 {unary(409, "", `{"code":"aborted"}`), false},
		"Connect, CANCELED":                {unary(499, "", `{"code":"canceled","message":"x"}`), false},
		"Connect, NOT_FOUND":               {unary(404, "", `{"code":"not_found"}`), true},
		"Connect, not its error":           {unary(404, "", `no such page`), true},
		"OK":                               {trailer("0"), true},
		"INVALID_ARGUMENT":                 {trailer("3"), true},
		"ALREADY_EXISTS":                   {trailer("6"), true},
		"RESOURCE_EXHAUSTED":               {trailer("8"), false},
		"ABORTED":                          {trailer("10"), false},
		"INTERNAL":                         {trailer("13"), false},
		"UNAVAILABLE":                      {trailer("14"), false},
		"UNAUTHENTICATED":                  {trailer("16"), false},
		"a code that makes no sense":       {trailer("99"), false},
		"no status":                        {body("application/grpc", frameOf(0, "x")), false},
		"a trailer alone, OK":              {alone("application/grpc", "0"), true},
		"a trailer alone, failure":         {alone("application/grpc", "14"), false},
		"gRPC-Web, OK":                     {body("application/grpc-web+proto", frameOf(0, "x")+frameOf(0x80, "grpc-status: 0\r\n")), true},
		"gRPC-Web, failure":                {body("application/grpc-web", frameOf(0, "x")+frameOf(0x80, "a: b\r\ngrpc-status:14\r\n")), false},
		"gRPC-Web, text":                   {body("application/grpc-web-text", "AAAAAAF4gAAAABBncnBjLXN0YXR1czogMTQNCg=="), false},
		"gRPC-Web, cut off":                {body("application/grpc-web", frameOf(0, "x")), false},
		"gRPC-Web, compressed, OK":         {zipped("application/grpc-web", "Grpc-Encoding", "gzip", 0x80, "grpc-status: 0\r\n"), true},
		"gRPC-Web, compressed, failure":    {zipped("application/grpc-web", "Grpc-Encoding", "gzip", 0x80, "grpc-status: 14\r\n"), false},
		"gRPC-Web, compressed, unknown":    {zipped("application/grpc-web", "Grpc-Encoding", "br", 0x80, "grpc-status: 0\r\n"), true},
		"Connect stream, compressed, OK":   {zipped("application/connect+json", "Connect-Content-Encoding", "gzip", 2, "{}"), true},
		"Connect stream, compressed error": {zipped("application/connect+json", "Connect-Content-Encoding", "gzip", 2, `{"error":{"code":"unavailable"}}`), false},
		"Connect stream, OK":               {body("application/connect+json", frameOf(0, "{}")+frameOf(2, "{}")), true},
		"Connect stream, failure":          {body("application/connect+json", frameOf(2, `{"error":{"code":"unavailable"}}`)), false},
		"Connect stream, refusal":          {body("application/connect+json", frameOf(2, `{"error":{"code":"not_found"}}`)), true},
		"Connect stream, without end":      {body("application/connect+json", frameOf(0, "{}")), false},
	} {
		g := newRig(t, nil, test.handler)
		sent := []change{with("Content-Type", "application/grpc"), withBody(frameOf(0, "x"))}
		if strings.HasPrefix(name, "Connect, ") {
			sent = []change{with("Content-Type", "application/json"), with("Connect-Protocol-Version", "1"), withBody("{}")}
		}
		g.send(sent...)
		if replayed := g.send(sent...).Header().Get("Idempotent-Replayed") == "true"; replayed != test.kept {
			t.Errorf("%s: replayed %v, want %v", name, replayed, test.kept)
		}
	}
}

// deadlinesOfClientsDoNotReachTheHandler: a deadline ends the client's wait and not the run.
func deadlinesOfClientsDoNotReachTheHandler(t *testing.T) {
	g := newRig(t, nil, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header["Grpc-Timeout"], r.Header["Connect-Timeout-Ms"], r.Header["X-A"])
	})
	deadlines := []change{with("Grpc-Timeout", "1m"), with("Connect-Timeout-Ms", "1"), with("X-A", "b")}
	if w := g.send(deadlines...); w.Body.String() != "[] [] [b]" {
		t.Errorf("the handler got %s", w.Body)
	}
	// Without a guard they are the handler's to keep.
	if w := g.send(append(deadlines, with("Idempotency-Key"))...); w.Body.String() != "[1m] [1] [b]" {
		t.Errorf("without a key the handler got %s", w.Body)
	}
}

// refusalsInTheProtocolAskedIn: a client of gRPC or Connect gets refusals in its protocol.
func refusalsInTheProtocolAskedIn(t *testing.T) {
	gate := newGate()
	g := newRig(t, &idempotency.Options{RequireKey: true}, gate.ServeHTTP)
	unary := with("Connect-Protocol-Version", "1")
	media := func(m string) change { return with("Content-Type", m) }
	first := g.sendLater(media("application/grpc"), withBody(frameOf(0, "x")))
	<-gate.entered
	again := withBody(frameOf(0, "x"))
	for name, test := range map[string]struct {
		sent           []change
		status         int
		code, has, not string
	}{
		"gRPC, running":      {[]change{media("application/grpc"), again}, 200, "10", "", "{"},
		"gRPC, mismatch":     {[]change{media("application/grpc+proto"), withBody(frameOf(0, "y"))}, 200, "3", "", "{"},
		"gRPC, no key":       {[]change{media("application/grpc"), again, with("Idempotency-Key")}, 200, "3", "", "{"},
		"gRPC-Web, mismatch": {[]change{media("application/grpc-web+proto"), again}, 200, "3", "", "{"},
		"Connect, mismatch":  {[]change{unary, media("application/json"), withBody("{}")}, 422, "", `"code":"invalid_argument"`, "type"},
		"Connect stream":     {[]change{media("application/connect+json"), again}, 200, "", `{"error":{"code":"invalid_argument"`, "type"},
		"HTTP":               {[]change{media("application/json"), withBody("{}")}, 422, "", `"type":`, "code"},
	} {
		w := g.send(test.sent...)
		if w.Code != test.status || w.Header().Get("Grpc-Status") != test.code || !strings.Contains(w.Body.String(), test.has) || strings.Contains(w.Body.String(), test.not) {
			t.Errorf("%s: %d, grpc-status %q, %q", name, w.Code, w.Header().Get("Grpc-Status"), w.Body)
		}
		after, _ := strconv.Atoi(w.Header().Get("Retry-After"))
		pushback, _ := strconv.Atoi(w.Header().Get("Grpc-Retry-Pushback-Ms"))
		if (name == "gRPC, running") != (pushback > 0) || pushback > 1000*after {
			t.Errorf("%s: asked to come back after %d s and after %d ms", name, after, pushback)
		}
		if sent := request(test.sent...).Header.Get("Content-Type"); test.code != "" && w.Header().Get("Content-Type") != sent {
			t.Errorf("%s: the Content-Type is %q", name, w.Header().Get("Content-Type"))
		}
	}
	close(gate.open)
	<-first
	g.ran(1)
}

// streamsAreRefused: a request that waits for an answer before it continues does not hang.
func streamsAreRefused(t *testing.T) {
	g := newRig(t, &idempotency.Options{BodyTimeout: time.Minute}, nil)
	server, client := http2Server(t, g.h)
	var running sync.WaitGroup
	for _, media := range []string{"application/grpc", "application/connect+proto"} {
		running.Go(func() {
			more, sends := io.Pipe()
			defer sends.Close()
			r, err := http.NewRequestWithContext(t.Context(), "POST", server.URL, more)
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set("Idempotency-Key", `"`+media+`"`)
			r.Header.Set("Content-Type", media)
			go io.WriteString(sends, frameOf(0, "hello"))
			res, err := client.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			body, _ := io.ReadAll(res.Body)
			if res.Header.Get("Grpc-Status") != "3" && !strings.Contains(string(body), "invalid_argument") {
				t.Errorf("%s: %d %v %q", media, res.StatusCode, res.Header, body)
			}
		})
	}
	running.Wait()
	g.ran(0)
}

// http2Server serves a handler over HTTP/2.
func http2Server(t *testing.T, h http.Handler) (*httptest.Server, *http.Client) {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	transport := &http.Transport{Protocols: server.Config.Protocols, ExpectContinueTimeout: time.Minute}
	t.Cleanup(transport.CloseIdleConnections)
	return server, &http.Client{Transport: transport}
}

// refusalsOfGRPCAreTrailersAlone: the stream ends with the header, because a client would
// otherwise miss the status.
func refusalsOfGRPCAreTrailersAlone(t *testing.T) {
	g := newRig(t, &idempotency.Options{RequireKey: true}, nil)
	server, client := http2Server(t, g.h)
	more, sends := io.Pipe()
	defer sends.Close()
	r := testkit.Request(t.Context(), t, "POST", server.URL, more)
	r.Header.Set("Content-Type", "application/grpc")
	res, err := client.Do(r)
	testkit.Must(t, err)
	defer res.Body.Close()
	if res.Header.Get("Grpc-Status") != "3" || res.ContentLength != 0 { // net/http says so of an ended stream
		t.Errorf("the refusal is %v, of length %d", res.Header, res.ContentLength)
	}
}

// streamsThatGoOnAreRefused: the limit counts from the first message, and later messages do
// not prolong it.
func streamsThatGoOnAreRefused(t *testing.T) {
	g := newRig(t, &idempotency.Options{BodyTimeout: time.Minute}, nil)
	server, client := http2Server(t, g.h)
	more, sends := io.Pipe()
	r := testkit.Request(t.Context(), t, "POST", server.URL, more)
	r.Header.Set("Idempotency-Key", "k")
	r.Header.Set("Content-Type", "application/grpc")
	go func() {
		for {
			if _, err := io.WriteString(sends, frameOf(0, "hello")); err != nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	defer more.Close()
	res, err := client.Do(r)
	testkit.Must(t, err)
	defer res.Body.Close()
	if res.Header.Get("Grpc-Status") != "3" {
		t.Errorf("the answer is %v", res.Header)
	}
	g.ran(0)
}
