package framing

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

var streams = []struct {
	name   string
	stream string
	bad    int
	owing  bool
}{
	{name: "nothing", stream: ""},
	{name: "one GET", stream: "GET / HTTP/1.1\r\nHost: a\r\n\r\n"},
	{name: "half a header", stream: "GET / HTTP/1.1\r\nHost:"},
	{name: "half a request line", stream: "GE"},
	{name: "a body that is short", stream: "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabc", owing: true},
	{name: "two pipelined bodies", stream: "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nabcde" +
		"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\na"},
	{name: "chunks", stream: "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" +
		"3;x=y\r\nabc\r\n0010 \r\n0123456789abcdef\r\n0\r\nContent-Length: 1\r\nA: b\r\n\r\nGET / HTTP/1.1\r\n\r\n"},
	{name: "both", stream: "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", bad: 1},
	{name: "both, the other way round, in odd case", stream: "POST / HTTP/1.1\r\ntransfer-ENCODING: chunked\r\nCONTENT-length:0\r\n\r\n0\r\n\r\n", bad: 1},
	{name: "both, bare line feeds", stream: "POST / HTTP/1.1\nContent-Length: 5\nTransfer-Encoding: chunked\n\n0\r\n\r\n", bad: 1},
	{name: "both, in the third request", stream: "GET / HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nab" +
		"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", bad: 3},
	{name: "both, inside a body", stream: "POST / HTTP/1.1\r\nContent-Length: 79\r\n\r\n" +
		"POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n12345678"},
	{name: "Transfer-Encoding in HTTP/1.0", stream: "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", bad: 1},
	{name: "a folded length", stream: "POST / HTTP/1.1\r\nContent-Length:\r\n 5\r\n\r\nabcde", bad: 1},
	{name: "a folded other field", stream: "POST / HTTP/1.1\r\nX: a\r\n Content-Length: 7\r\n\r\n"},
	{name: "a length padded out of sight", stream: "POST / HTTP/1.1\r\nContent-Length:" + strings.Repeat(" ", 200) + "5\r\n\r\n", bad: 1},
	{name: "a length that is none", stream: "POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n", bad: 1},
	{name: "a long line before both", stream: "POST /" + strings.Repeat("x", 5000) + " HTTP/1.1\r\nA: " + strings.Repeat("y", 5000) +
		"\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", bad: 1},
	{name: "a chunk size that is none", stream: "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", bad: 2},
	{name: "empty lines before a request", stream: "POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\na\r\n\r\nGET / HTTP/1.1\r\n\r\n"},
	{name: "HTTP/2 without TLS", stream: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"},
}

// TestScanner: however the stream is cut, the same request is found ambiguous.
func TestScanner(t *testing.T) {
	for _, test := range streams {
		t.Run(test.name, func(t *testing.T) {
			for _, cut := range []int{1, 2, 3, 7, 16, 1 << 20} {
				var s Scanner
				for p := []byte(test.stream); len(p) > 0; p = p[min(cut, len(p)):] {
					s.Scan(p[:min(cut, len(p))])
				}
				if s.Bad() != test.bad {
					t.Errorf("in pieces of %d: request %d is ambiguous; want %d", cut, s.Bad(), test.bad)
				}
				if s.Owing() != test.owing {
					t.Errorf("in pieces of %d: Owing() = %v; want %v", cut, s.Owing(), test.owing)
				}
			}
		})
	}
}

// FuzzScanner compares the scanner with net/http's own reader: no request that
// it hands out may have had both fields unless the scanner said so, and where
// net/http is content, so is the scanner, except for what it must refuse.
func FuzzScanner(f *testing.F) {
	for _, test := range streams {
		f.Add([]byte(test.stream), uint8(3))
	}
	f.Fuzz(func(t *testing.T, stream []byte, cut uint8) {
		var whole, pieces Scanner
		whole.Scan(stream)
		for p := stream; len(p) > 0; {
			n := min(int(cut)+1, len(p))
			pieces.Scan(p[:n])
			p = p[n:]
		}
		if whole.Bad() != pieces.Bad() || whole.Owing() != pieces.Owing() {
			t.Fatalf("whole: %d %v, in pieces: %d %v", whole.Bad(), whole.Owing(), pieces.Bad(), pieces.Owing())
		}
		smuggled, ok := firstAmbiguous(stream)
		if smuggled > 0 && (whole.Bad() == 0 || whole.Bad() > smuggled) {
			t.Fatalf("request %d is ambiguous; the scanner says %d", smuggled, whole.Bad())
		}
		if ok && whole.Bad() > 0 {
			t.Fatalf("all requests are clean; the scanner says %d", whole.Bad())
		}
	})
}

// firstAmbiguous reads the requests as net/http does. It returns the number of
// the first one that has both framing fields, or 0, and whether the stream
// consists of whole, plain HTTP/1.1 requests only.
func firstAmbiguous(stream []byte) (int, bool) {
	src := bytes.NewReader(stream)
	r := bufio.NewReader(src)
	offset := func() int { return len(stream) - src.Len() - r.Buffered() }
	for i := 1; ; i++ {
		begin := offset()
		req, err := http.ReadRequest(r)
		if err != nil {
			return 0, errors.Is(err, io.EOF) && begin == len(stream)
		}
		head := stream[begin:offset()]
		if req.ProtoMajor != 1 {
			return 0, false
		}
		if length, te, plain := framingFields(head); length && te {
			return i, false
		} else if !plain || req.ProtoMinor != 1 {
			return 0, false
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return 0, false
		}
	}
}

// framingFields says which framing fields a header block has, and whether it
// is free of what the scanner refuses besides.
func framingFields(head []byte) (length, te, plain bool) {
	plain = true
	for i, line := range bytes.Split(head, []byte("\n")) {
		if i == 0 {
			continue
		}
		if len(line) > 100 || len(line) > 0 && (line[0] == ' ' || line[0] == '\t') {
			plain = false
		}
		name, _, _ := bytes.Cut(line, []byte(":"))
		length = length || strings.EqualFold(string(name), "Content-Length")
		te = te || strings.EqualFold(string(name), "Transfer-Encoding")
	}
	return length, te, plain
}

func BenchmarkScanner(b *testing.B) {
	request := []byte("POST /v1/charges HTTP/1.1\r\nHost: api.example.com\r\nUser-Agent: bench\r\nAccept: */*\r\n" +
		"Idempotency-Key: \"8e03978e-40d5-43dd-bc93-6894a57f9324\"\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n" +
		`{"amount": 12345678}`)
	b.SetBytes(int64(len(request)))
	var s Scanner
	for b.Loop() {
		s.Scan(request)
	}
	if s.Bad() != 0 || s.Owing() {
		b.Fatal("the scanner lost its way")
	}
}
