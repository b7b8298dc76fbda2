//go:build unix

package servertest

import (
	"bufio"
	"bytes"
	"reflect"
	"strings"
	"testing"
)

func TestReadAnswer(t *testing.T) {
	tests := map[string]any{
		"+OK\r\n":                 "OK",
		"+\r\n":                   "",
		"-ERR no\r\n":             RedisError("ERR no"),
		":-7\r\n":                 int64(-7),
		"$4\r\na\r\nb\r\n":        "a\r\nb",
		"$0\r\n\r\n":              "",
		"$-1\r\n":                 nil,
		"*-1\r\n":                 nil,
		"*0\r\n":                  []any{},
		"*2\r\n:1\r\n-ERR\r\n":    []any{int64(1), RedisError("ERR")},
		"*1\r\n*1\r\n$1\r\na\r\n": []any{[]any{"a"}},
	}
	for input, want := range tests {
		got, err := readAnswer(bufio.NewReader(strings.NewReader(input)))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %#v, %v; want %#v", input, got, err, want)
		}
	}
}

func TestReadAnswerRefuses(t *testing.T) {
	for _, input := range []string{
		"", "\r\n", "+OK", "+OK\n", "?\r\n", "HTTP/1.1 400\r\n", ":x\r\n", "$x\r\n", "*x\r\n", "$3\r\nab\r\n", "$1\r\nabc\r\n",
		"$999999999999\r\nab\r\n", "*999999999999\r\n:1\r\n", strings.Repeat("*1\r\n", 1000) + ":1\r\n",
	} {
		if got, err := readAnswer(bufio.NewReader(strings.NewReader(input))); err == nil {
			t.Errorf("%q: got %#v; want an error", input, got)
		}
	}
}

// A request is an answer of strings, so that what is written is what is read.
func TestAppendRequest(t *testing.T) {
	b := appendRequest(nil, []any{"SET", []byte("a\r\n"), 7, ""})
	got, err := readAnswer(bufio.NewReader(bytes.NewReader(b)))
	if want := []any{"SET", "a\r\n", "7", ""}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %#v, %v; want %#v", got, err, want)
	}
}

func FuzzReadAnswer(f *testing.F) {
	for _, seed := range []string{"+OK\r\n", "*2\r\n:1\r\n$-1\r\n", "$3\r\nabc\r\n", "*1\r\n*-1\r\n", "$99\r\n", "-ERR\r\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		answer, err := readAnswer(bufio.NewReaderSize(r, 16))
		if err != nil {
			return
		}
		again, err := readAnswer(bufio.NewReader(bytes.NewReader(b)))
		if err != nil || !reflect.DeepEqual(answer, again) {
			t.Errorf("%#v, and then %#v, %v", answer, again, err)
		}
	})
}
