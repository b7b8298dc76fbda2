package dialect

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// eventsOf returns the data of the messages in an event stream, which it reads as a whole.
func eventsOf(stream []byte) (all [][]byte) {
	var data []byte
	named := false
	for line := range strings.SplitSeq(lineEnds.Replace(strings.TrimPrefix(string(stream), byteOrderMark))+"\n\n", "\n") {
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case field == "data":
			data = append(append(data, value...), '\n')
		case field == "event":
			named = value != "" && value != "message"
		case line == "":
			if len(data) > 0 && !named {
				all = append(all, data[:len(data)-1])
			}
			data, named = nil, false
		}
	}
	return all
}

// FuzzEventReader: an event stream that comes in parts has the messages that it has as a whole.
func FuzzEventReader(f *testing.F) {
	for _, stream := range []string{
		"data: a\n\n", "\ufeffdata:a\r\ndata\r\n\r\n", "\ufeff\ufeffdata: a\n\n", "\xefdata: a\n\ndata: b", "event: other\rdata: a\r\rdata:  b\n\n",
		"event:message\ndata: a\nid: 7\n:\n: ping\n\n", "data\n\ndata\ndata\n\n", "event: messagemessagemessage\ndata: a\n\n", "data :a\ndat:a\ndata:\n\n",
	} {
		f.Add([]byte(stream), byte(1))
		f.Add([]byte(stream), byte(255))
	}
	f.Fuzz(func(t *testing.T, stream []byte, size byte) {
		var got [][]byte
		data := []byte{}
		var e eventReader
		e.data = func(p []byte) { data = append(data, p...) }
		e.end = func(counts bool) {
			if counts {
				got = append(got, data)
			}
			data = []byte{}
		}
		for part := range slices.Chunk(stream, max(1, int(size))) {
			e.write(part)
		}
		e.finish()
		if want := eventsOf(stream); !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("%q has the messages %q in parts of %d bytes, and %q as a whole", stream, got, size, want)
		}
	})
}

// FuzzSkeleton: a response whose text is not kept is treated as one that is.
func FuzzSkeleton(f *testing.F) {
	long := strings.Repeat(`\u00e9\"é`, 200)
	for _, text := range []string{
		`{"id":1,"result":{"content":[{"a":[{}]}],"isError":true}}`, `{"jsonrpc":"2.0","id":"` + long + `","result":{"x":"` + long + `","resultType":"input_required"}}`,
		`{"id":1,"method":"notifications/progress","params":{"a":[[["]"]]]}}`, `{"id":1,"error":{"code":1,"data":{"isError":false}}}`, ` { "id" : 1 , "result" : [ [ ] , { } ] } `,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		want := replyOf(text)
		if !json.Valid(text) || len(text) > maxSkeleton {
			return
		}
		var s skeleton
		s.write(text)
		got := replyOf(s.text)
		if (got == nil) != (want == nil) || got != nil && got.status != want.status {
			t.Errorf("%q became %q: %+v; want %+v", text, s.text, got, want)
		}
	})
}
